"""Decoding and encoding of Arrow batches, one record after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from kpipe_platform.codecs.exact import MISFITS, MisfitError, exact_array
from kpipe_platform.codecs.faults import DecodeFault, EncodeFault
from kpipe_platform.errors import UnknownSchemaIdError


def decode_each(decode: Callable[[bytes | None], Any], data: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode one record after the other. A value that the type cannot hold is null, as one that does not decode."""
    values = [_decoded(decode, each) for each in data.to_pylist()]
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
