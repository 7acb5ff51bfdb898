"""The raw codec: bytes without conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.faults import NOT_ENCODABLE, EncodeFault
from kpipe_platform.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as T


@dataclass(frozen=True)
class RawCodec(Codec):
    """Returns the bytes unchanged. Every byte string decodes."""

    name: ClassVar[str] = "raw"

    is_struct: ClassVar[bool] = False

    @property
    def value_type(self) -> T.DataType:
        """BINARY."""
        from pyspark.sql.types import BinaryType

        return BinaryType()

    def parse(self, data: Column) -> Column:
        """Return the bytes."""
        return data

    def fault(self, data: Column, parsed: Column) -> None:
        """Return None, because all bytes decode."""

    def write(self, value: Column, kind: T.DataType) -> Column:
        """Return the bytes, or the text in UTF-8."""
        return as_bytes(self, value, kind)

    def misfit(self, value: Column, kind: T.DataType) -> None:
        """Return None, because all values of the type can be encoded."""

    def _decode(self, data: bytes) -> bytes:
        return bytes(data)

    def _encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        message = f"codec 'raw' encodes bytes, not {type(value).__name__}"
        raise EncodeFault(message, kind=NOT_ENCODABLE, fix="use TextCodec() or JsonCodec(), or convert it to bytes")


def as_bytes(codec: Codec, value: Column, kind: T.DataType) -> Column:
    """Cast a binary or string column to bytes.

    Raises:
        ConfigError: It has another type.
    """
    if kind.typeName() not in ("binary", "string", "void"):
        msg = f"column 'value' is {kind.simpleString()}; codec {codec.name!r} writes binary or string"
        raise ConfigError(msg, fix="cast it, or use JsonCodec()", column="value")
    return value.cast("binary")
