"""The text codec: UTF-8 text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.faults import NOT_ENCODABLE, NOT_UTF8, DecodeFault, EncodeFault
from kpipe_platform.codecs.raw import as_bytes

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as T


@dataclass(frozen=True)
class TextCodec(Codec):
    """Decodes UTF-8 text. Empty bytes decode to the empty string. Bytes that are not UTF-8 are a fault."""

    name: ClassVar[str] = "text"

    is_struct: ClassVar[bool] = False

    @property
    def value_type(self) -> T.DataType:
        """STRING."""
        from pyspark.sql.types import StringType

        return StringType()

    def parse(self, data: Column) -> Column:
        """Return the bytes as text."""
        return data.cast("string")

    def fault(self, data: Column, parsed: Column) -> Column:
        """Return whether the bytes are not UTF-8."""
        from pyspark.sql import functions as F

        return data.isNotNull() & ~F.is_valid_utf8(parsed)

    def write(self, value: Column, kind: T.DataType) -> Column:
        """Return the bytes, or the text in UTF-8."""
        return as_bytes(self, value, kind)

    def misfit(self, value: Column, kind: T.DataType) -> None:
        """Return None, because all values of the type can be encoded."""

    def _decode(self, data: bytes) -> str:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(error) from None

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            message = f"codec 'text' encodes str, not {type(value).__name__}"
            raise EncodeFault(message, kind=NOT_ENCODABLE, fix="convert it with str(...)")
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as error:
            message = f"the text has a lone surrogate at position {error.start}, which UTF-8 cannot encode"
            raise EncodeFault(message, kind=NOT_ENCODABLE) from None


def not_utf8(error: UnicodeDecodeError, of: str = "") -> DecodeFault:
    """Return the fault for the first byte that is not UTF-8. Its position counts from 0, in what ``of`` names."""
    byte = error.object[error.start]
    message = f"not UTF-8: byte 0x{byte:02x} at position {error.start}{of} ({error.reason})"
    return DecodeFault(message, kind=NOT_UTF8)
