"""Arrow functions of codecs that are not Spark expressions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec
from kpipe_platform.codecs.batches import decode_each, encode_each
from kpipe_platform.codecs.faults import may_be_of_data
from kpipe_platform.codecs.types import stage_type
from kpipe_platform.errors import ConfigError
from kpipe_platform.spark._compat import cloudpickle, send_by_value, to_arrow_type
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
    parsed: Column = _decoder(codec)(data)
    return parsed


def write_batches(codec: Codec, value: Column) -> Column:
    """Encode a column with `Codec.encode_batch`: a struct of ``data`` (binary) and ``misfit`` (string)."""
    written: Column = _encoder(codec)(value)
    return written


def decode_batch(codec: Codec, data: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode a batch with a codec's `Codec.decode_batch`, or one record after the other if that raises an exception.

    Raises:
        ConfigError: The codec returned another type or number of values.
    """
    try:
        decoded = codec.decode_batch(data, kind)
    except Exception as error:
        if not may_be_of_data(error):
            raise
        decoded = decode_each(codec.decode, data, kind, codec.value_type)
    return _checked(codec, "decode_batch", decoded, kind, len(data))


def encode_batch(codec: Codec, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Encode a batch with a codec's `Codec.encode_batch`, or one value after the other if that raises an exception.

    Raises:
        ConfigError: The codec returned another type or number of values.
    """
    try:
        encoded, misfits = codec.encode_batch(values)
    except Exception as error:
        if not may_be_of_data(error):
            raise
        return encode_each(codec.encode, values)
    encoded = _checked(codec, "encode_batch", encoded, pa.binary(), len(values))
    misfits = _checked(codec, "encode_batch", misfits, pa.string(), len(values))
    # Without a reason, a null would be written as a tombstone.
    is_lost = pc.and_(values.is_valid(), pc.and_(encoded.is_null(), misfits.is_null()))
    return encode_each(codec.encode, values) if pc.any(is_lost).as_py() else (encoded, misfits)


def _checked(codec: Codec, method: str, array: Any, kind: pa.DataType, length: int) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not isinstance(array, pa.Array) or len(array) != length or array.type != kind:
        is_array = isinstance(array, pa.Array)
        found = f"{len(array)} values of type {array.type}" if is_array else type(array).__name__
        msg = f"{type(codec).__name__}.{method} returned {found}; expected {length} values of type {kind}"
        raise ConfigError(msg, fix="return a pyarrow.Array with a value, or a null, for each record")
    return array


# Spark calls a function once for two columns that are equal, so the function must be the same object.


@reused
def _decoder(codec: Codec) -> Any:
    kind = arrow_type(codec)

    def decode(batch: pa.Array) -> pa.Array:
        return decode_batch(codec, batch, kind)

    # If it were deterministic, Spark would decode once to filter and once more for the columns.
    return _function(decode, decoded_type(codec), codec).asNondeterministic()


@reused
def _encoder(codec: Codec) -> Any:
    def encode(batch: pa.Array) -> pa.Array:
        data, misfits = encode_batch(codec, batch)
        return pa.StructArray.from_arrays([data, misfits], names=["data", "misfit"])

    return _function(encode, _ENCODED, codec)


def _function(call: Callable[[pa.Array], pa.Array], kind: T.DataType, codec: Codec) -> Any:
    ship(codec)
    functions: Any = F
    return functions.arrow_udf(call, returnType=kind)


def ship(codec: Codec) -> None:
    """Have a codec's classes sent to the executors, which need not have the user's modules.

    Raises:
        ConfigError: A class uses an object that cannot be pickled.
    """
    modules = {module for cls in _classes(codec) if not (module := cls.__module__).startswith("kpipe_platform.")}
    for module in modules:
        send_by_value(sys.modules[module])
    try:
        if modules:
            cloudpickle.dumps(codec)  # type: ignore[no-untyped-call]
    except Exception as error:
        msg = f"{type(codec).__name__} cannot be sent to Spark's workers: {error}"
        raise ConfigError(msg, fix="create this object in a method, not at the top of the module") from error


def _classes(value: object) -> Iterator[type[Codec]]:
    """Classes of a codec and of the codecs in its settings."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _classes(each)
    elif isinstance(value, Codec):
        yield from (cls for cls in type(value).__mro__ if issubclass(cls, Codec))
        yield from _classes(list(vars(value).values()))
