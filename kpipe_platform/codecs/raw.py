"""The raw codec: bytes without conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kpipe_platform.codecs.base import NOT_ENCODABLE, Codec, DecodeFault, EncodeFault


@dataclass(frozen=True)
class RawCodec(Codec):
    """Returns the bytes unchanged. Every byte string decodes."""

    name: ClassVar[str] = "raw"

    def diagnose(self, data: bytes) -> DecodeFault | None:
        """Return None, because all bytes decode."""
        return None

    def _decode(self, data: bytes) -> bytes:
        return bytes(data)

    def _encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        message = f"codec 'raw' encodes bytes, not {type(value).__name__}"
        raise EncodeFault(message, kind=NOT_ENCODABLE, fix="use TextCodec() or JsonCodec(), or convert it to bytes")
