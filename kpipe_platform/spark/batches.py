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
from kpipe_platform.codecs.batches import decode_batch, encode_batch
from kpipe_platform.codecs.types import stage_type
from kpipe_platform.spark._compat import cloudpickle, to_arrow_type
from kpipe_platform.spark.column_cache import reused

_ENCODED = T.StructType().add("data", T.BinaryType()).add("misfit", T.StringType())


def decoded_type(codec: Codec) -> T.DataType:
    """Type of the decoded values. Without NOT NULL, because Arrow refuses a null struct with required fields."""
    return stage_type(codec.value_type)


def arrow_type(codec: Codec) -> pa.DataType:
    """Arrow's form of the decoded values."""
    return to_arrow_type(decoded_type(codec), timezone="UTC")


def parse_batches(codec: Codec, data: Column) -> Column:
    """Decode a column of bytes with `Codec.decode_batch`. Null where the bytes are null or do not decode."""
    return _decoder(codec)(data)


def write_batches(codec: Codec, value: Column) -> Column:
    """Encode a column with `Codec.encode_batch`: a struct of ``data`` (binary) and ``misfit`` (string)."""
    return _encoder(codec)(value)


# Spark calls a function once for two columns that are equal, so the function must be the same object.


@reused
def _decoder(codec: Codec) -> Callable[[Column], Column]:
    kind = arrow_type(codec)

    def decode(batch: pa.Array) -> pa.Array:
        return decode_batch(codec, batch, kind)

    return _function(decode, decoded_type(codec), codec)


@reused
def _encoder(codec: Codec) -> Callable[[Column], Column]:
    def encode(batch: pa.Array) -> pa.Array:
        data, misfits = encode_batch(codec, batch)
        return pa.StructArray.from_arrays([data, misfits], names=["data", "misfit"])

    return _function(encode, _ENCODED, codec)


def _function(call: Callable[[pa.Array], pa.Array], kind: T.DataType, codec: Codec) -> Callable[[Column], Column]:
    ship(codec)
    functions: Any = F
    made: Callable[[Column], Column] = functions.arrow_udf(call, returnType=kind)
    return made


def ship(codec: Codec) -> None:
    """Have a codec's classes sent to the executors, which need not have the user's modules."""
    register: Any = cloudpickle.register_pickle_by_value
    for cls in type(codec).__mro__:
        if issubclass(cls, Codec) and not cls.__module__.startswith("kpipe_platform."):
            register(sys.modules[cls.__module__])
    for value in vars(codec).values():
        if isinstance(value, Codec):
            ship(value)
