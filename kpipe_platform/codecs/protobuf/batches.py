"""Decode and encode batches of messages: as a whole with ptars where that is right, else one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kpipe_platform.codecs.batches import decode_each, encode_each
from kpipe_platform.codecs.protobuf._compat import is_panic
from kpipe_platform.codecs.protobuf.arrow import arrow_converter

# Where a batch does not convert as a whole, its halves are tried down to this size, then each record.
_FEW = 32

_Convert = Callable[[pa.Array], pa.Array]


class MessageCodec(Protocol):
    """The codec of a message type, as `kpipe_platform.codecs.protobuf.messages` defines it."""

    @property
    def descriptors(self) -> str:
        """Serialized ``FileDescriptorSet`` in base64."""

    @property
    def message(self) -> str:
        """Full name of the message type."""

    @property
    def prefixes(self) -> tuple[bytes, ...] | None:
        """The usual bytes in front of messages; None if there are none."""

    @property
    def prefix(self) -> bytes:
        """The bytes in front of each message that is written."""

    def decode(self, data: bytes | None) -> Any:
        """Decode a record."""

    def encode(self, value: Any) -> bytes | None:
        """Encode a record."""

    def read_payload(self, payload: bytes | None) -> Any:
        """Decode a message without what is in front of it."""


def decode_messages(codec: MessageCodec, data: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode a batch, as `Codec.decode_batch` does."""
    converter = arrow_converter(codec.descriptors, codec.message)
    if converter is None:
        return decode_each(codec.decode, data, kind)
    is_usual, payloads = _payloads(data, codec.prefixes)
    found = _by_halves(
        payloads,
        lambda part: converter.decode(part, kind),
        lambda part: decode_each(codec.read_payload, part, kind),
    )
    if len(payloads) == len(data):
        return found
    # These are null, cannot be read, or have an unusual prefix.
    others = pc.invert(is_usual)
    rest = decode_each(codec.decode, data.filter(others), kind)
    places = pa.concat_arrays([pc.indices_nonzero(is_usual), pc.indices_nonzero(others)])
    return pa.concat_arrays([found, rest]).take(pc.sort_indices(places))


def encode_messages(codec: MessageCodec, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Encode a batch, as `Codec.encode_batch` does."""
    converter = arrow_converter(codec.descriptors, codec.message)
    if converter is None:
        return encode_each(codec.encode, values)

    def as_whole(part: pa.Array) -> pa.Array:
        data = converter.encode(part)
        if codec.prefix:
            data = pc.binary_join_element_wise(pa.scalar(codec.prefix, data.type), data, pa.scalar(b"", data.type))
        if part.null_count:
            data = pc.if_else(part.is_valid(), data, None)
        return _encoded(data, pa.nulls(len(part), pa.string()))

    found = _by_halves(values, as_whole, lambda part: _encoded(*encode_each(codec.encode, part)))
    return found.field("data"), found.field("misfit")


def _payloads(data: pa.Array, prefixes: tuple[bytes, ...] | None) -> tuple[pa.Array, pa.Array]:
    """Return which records begin with one of the prefixes, and what follows in these."""
    present = data.is_valid()
    if prefixes is None:
        return present, data.drop_null() if data.null_count else data
    left, parts, places = present, [], []
    for prefix in prefixes:
        own = pc.and_(left, pc.fill_null(pc.starts_with(data, pattern=prefix), False))
        if pc.any(own).as_py():
            # binary_slice() fails for some arrays in pyarrow 26.
            parts.append(pc.binary_replace_slice(data.filter(own), 0, len(prefix), b""))
            places.append(pc.indices_nonzero(own))
            left = pc.and_not(left, own)
            if not pc.any(left).as_py():
                break
    is_usual = pc.and_not(present, left)
    if not parts:
        return is_usual, data.slice(0, 0)
    if len(parts) == 1:
        return is_usual, parts[0]
    return is_usual, pa.concat_arrays(parts).take(pc.sort_indices(pa.concat_arrays(places)))


def _by_halves(batch: pa.Array, whole: _Convert, each: _Convert) -> pa.Array:
    """Convert a batch; if that fails, its halves, so that a few bad records do not make the others slow."""
    try:
        return whole(batch)
    except ValueError:
        pass
    except BaseException as error:
        if not is_panic(error):
            raise
    if len(batch) <= _FEW:
        return each(batch)
    middle = len(batch) // 2
    halves = (batch.slice(0, middle), batch.slice(middle))
    return pa.concat_arrays([_by_halves(half, whole, each) for half in halves])


def _encoded(data: pa.Array, misfits: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([data, misfits], names=["data", "misfit"])
