"""Decoding and encoding of Arrow batches, one record after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from kpipe_platform.codecs.exact import MISFITS, MisfitError, exact_array
from kpipe_platform.codecs.faults import DecodeFault, EncodeFault
from kpipe_platform.codecs.types import field_path
from kpipe_platform.errors import UnknownSchemaIdError

_NESTED = (T.StructType, T.ArrayType, T.MapType)


def decode_each(
    decode: Callable[[bytes | None], Any], data: pa.Array, kind: pa.DataType, declared: T.DataType | None = None
) -> pa.Array:
    """Decode one record after the other. A value that the type cannot hold is null, as one that does not decode.

    Args:
        decode: Decodes one record.
        data: The bytes of the records.
        kind: The type of the result.
        declared: The declared type, if values with a null in a required field are refused here.
    """
    values = [_decoded(decode, each) for each in data.to_pylist()]
    if declared is not None:
        values = [None if missing_in(value, declared) else value for value in values]
    try:
        return exact_array(values, kind, "value")
    except MisfitError:
        return pa.array([value if _fits(value, kind) else None for value in values], kind)


def encode_each(encode: Callable[[Any], bytes | None], values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Encode one value after the other."""
    encoded: list[bytes | None] = []
    misfits: list[str | None] = []
    for read in _readers(values):
        data, misfit = None, None
        try:
            value = read()
        except MISFITS as error:
            misfit = f"Python cannot represent the value: {error}"
        else:
            try:
                data = encode(value)
            except EncodeFault as fault:
                misfit = fault.message
        encoded.append(data)
        misfits.append(misfit)
    return pa.array(encoded, pa.binary()), pa.array(misfits, pa.string())


def missing_in(value: Any, kind: T.DataType, path: str = "") -> str | None:
    """Path of the first required field of a decoded value that is null; None if there is none."""
    inside: Iterable[tuple[str, Any, T.DataType]] = ()
    if isinstance(kind, T.StructType) and isinstance(value, Mapping):
        for field in kind:
            if not field.nullable and value.get(field.name) is None:
                return field_path(path, field.name)
        inside = ((field_path(path, field.name), value.get(field.name), field.dataType) for field in kind)
    elif isinstance(kind, T.ArrayType) and isinstance(value, list | tuple):
        inside = ((f"{path}[{number}]", each, kind.elementType) for number, each in enumerate(value))
    elif isinstance(kind, T.MapType) and isinstance(value, Mapping):
        inside = ((f"{path}[{key!r}]", each, kind.valueType) for key, each in value.items())
    found = (missing_in(each, own, at) for at, each, own in inside if isinstance(own, _NESTED))
    return next(filter(None, found), None)


def _decoded(decode: Callable[[bytes | None], Any], data: bytes | None) -> Any:
    try:
        return decode(data)
    except (DecodeFault, UnknownSchemaIdError):
        return None  # the writer finds out why


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        exact_array([value], kind, "value")
    except MisfitError:
        return False
    return True


def _readers(values: pa.Array) -> Iterator[Callable[[], Any]]:
    """Functions that return the values as Python objects; of a value that Python cannot represent, it raises."""
    try:
        listed = values.to_pylist(maps_as_pydicts="strict")
    except MISFITS:
        return (partial(value.as_py, maps_as_pydicts="strict") for value in values)
    return (partial(_itself, value) for value in listed)


def _itself(value: Any) -> Any:
    return value
