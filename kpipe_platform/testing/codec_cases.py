"""What the conformance test of a codec needs to know of it, and its comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from kpipe_platform.codecs import Codec, DecodeFault
from kpipe_platform.codecs.base import Part
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.wire import split


@dataclass(frozen=True)
class CodecCase:
    """A codec, and what it must do with values and bytes.

    Args:
        codec: The codec.
        values: At least two different values, in the form that `Codec.decode` returns. A value is the only one that
            its bytes decode to, and does not contain a NaN.
        faults: Byte strings that do not decode, with the kinds of their faults.
        not_encodable: Python values that the codec cannot encode.
        misfits: Values that fit the codec's columns, and that it cannot encode.
        lenient: Further byte strings that decode, each with its value.
        removing: Those of ``values`` that leave no row in a table, see `Codec.table_changes`.
        is_exact: Whether Spark and Python must write the same bytes for a value. Default True. False if the format has
            several forms of a value.
        is_key: Whether keys are tested too. Default True.
    """

    codec: Codec
    values: Sequence[Any]
    faults: Mapping[bytes, str] = field(default_factory=dict)
    not_encodable: Sequence[Any] = ()
    misfits: Sequence[Any] = ()
    lenient: Mapping[bytes, Any] = field(default_factory=dict)
    removing: Sequence[Any] = ()
    is_exact: bool = True
    is_key: bool = True


@dataclass(frozen=True)
class Pinned:
    """The codecs to read and write one part of a topic's records, which need no registry."""

    reader: Codec
    writer: Codec

    @classmethod
    def of(cls, case: CodecCase, registry: RegistryClient | None, topic: str, part: Part) -> Pinned:
        """Resolve the codec, with the ids of all values."""
        codec = case.codec
        writer = codec.resolved_to_write(registry, topic, part, codec.value_type if codec.has_schema else None)
        data = [*(writer.encode(value) or b"" for value in case.values), *case.lenient, *case.faults]
        return cls(codec.resolved(registry, topic, part, {id_of(codec, one) for one in data}), writer)

    def encode(self, value: Any) -> bytes:
        """Encode a value, which must be possible."""
        data = self.writer.encode(value)
        require_that(isinstance(data, bytes), f"encode({value!r:.200}) returned {data!r:.200}, not bytes")
        return data or b""

    def content(self, data: bytes | None, *, is_exact: bool = True) -> Any:
        """What must be equal in two byte strings of the same value: the bytes after the schema's id, or the value."""
        if data is None or not is_exact:
            return self.reader.decode(data)
        return data[len(id_of(self.reader, data)) :]


def id_of(codec: Codec, data: bytes) -> bytes:
    """The bytes in front of the data that name the schema."""
    if not codec.is_framed:
        return b""
    try:
        return data[: len(data) - len(split(data)[1])]
    except DecodeFault:
        return b""


def require_that(condition: bool, message: str) -> None:
    """Raise AssertionError with the message if the condition is false. ``assert`` would be removed by ``python -O``."""
    if not condition:
        raise AssertionError(message)


def require_same(found: Any, expected: Any, what: str) -> None:
    """Raise AssertionError that says what differs if two values are not equal."""
    if found == expected:
        return
    if isinstance(found, list) and isinstance(expected, list):
        pairs = enumerate(zip_longest(found, expected, fillvalue="nothing"))
        number, (found, expected) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        what = f"{what}, number {number}"
    elif isinstance(found, Counter) and isinstance(expected, Counter):
        found, expected = found - expected, expected - found
    message = f"{what}\n  expected: {expected!r:.2000}\n  found:    {found!r:.2000}"
    raise AssertionError(message)
