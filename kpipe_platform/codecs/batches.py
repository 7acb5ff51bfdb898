"""Decoding and encoding of Arrow batches, one record after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from kpipe_platform.codecs.faults import DecodeFault, EncodeFault

_NOT_ARROW = (pa.ArrowException, TypeError, ValueError, OverflowError)


def decode_each(decode: Callable[[bytes | None], Any], data: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode one record after the other. A value that the type cannot hold is null, as one that does not decode."""
    values = [_decoded(decode, each) for each in data.to_pylist()]
    try:
        return pa.array(values, kind)
    except _NOT_ARROW:
        return pa.array([value if _fits(value, kind) else None for value in values], kind)


def encode_each(encode: Callable[[Any], bytes | None], values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Encode one value after the other."""
    encoded: list[bytes | None] = []
    misfits: list[str | None] = []
    for value in values.to_pylist(maps_as_pydicts="strict"):
        try:
            encoded.append(encode(value))
            misfits.append(None)
        except EncodeFault as fault:
            encoded.append(None)
            misfits.append(fault.message)
    return pa.array(encoded, pa.binary()), pa.array(misfits, pa.string())


def _decoded(decode: Callable[[bytes | None], Any], data: bytes | None) -> Any:
    try:
        return decode(data)
    except DecodeFault:
        return None


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except _NOT_ARROW:
        return False
    return True
