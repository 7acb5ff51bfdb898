"""Arrow functions of codecs that are no Spark expressions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec
from kpipe_platform.spark._compat import cloudpickle, to_arrow_type

_ENCODED = T.StructType().add("data", T.BinaryType()).add("misfit", T.StringType())


def parse_batches(codec: Codec, data: Column) -> Column:
    """Decode a column of bytes with `Codec.decode_batch`. Null where the bytes are null or do not decode."""
    kind = to_arrow_type(codec.value_type, timezone="UTC")

    def decode(batch: pa.Array) -> pa.Array:
        return codec.decode_batch(batch, kind)

    return _function(decode, codec.value_type, codec)(data)


def write_batches(codec: Codec, value: Column) -> Column:
    """Encode a column with `Codec.encode_batch`: a struct of ``data`` (binary) and ``misfit`` (string)."""

    def encode(batch: pa.Array) -> pa.Array:
        data, misfits = codec.encode_batch(batch)
        return pa.StructArray.from_arrays([data, misfits], names=["data", "misfit"])

    return _function(encode, _ENCODED, codec)(value)


def _function(call: Callable[[pa.Array], pa.Array], kind: T.DataType, codec: Codec) -> Callable[[Column], Column]:
    module = sys.modules[type(codec).__module__]
    if not module.__name__.startswith("kpipe_platform."):
        # Executors need not have the user's module.
        register: Any = cloudpickle.register_pickle_by_value
        register(module)
    functions: Any = F
    made: Callable[[Column], Column] = functions.arrow_udf(call, returnType=kind)
    return made
