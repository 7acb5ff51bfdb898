"""A codec of Spark expressions: a whole number in 8 bytes, as Java's LongSerializer writes it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform import Codec
from kpipe_platform.errors import ConfigError


@dataclass(frozen=True)
class LongCodec(Codec):
    """Decodes and encodes a BIGINT in 8 bytes, the most significant one first."""

    name: ClassVar[str] = "long"

    @property
    def value_type(self) -> T.DataType:
        """The type of the column ``value``."""
        return T.LongType()

    def _decode(self, data: bytes) -> int:
        (number,) = struct.unpack(">q", data)
        return int(number)

    def _encode(self, value: Any) -> bytes:
        return struct.pack(">q", value)

    def parse(self, data: Column) -> Column:
        """Return the number; null if there are not 8 bytes."""
        return F.when(F.length(data) == 8, F.conv(F.hex(data), 16, -10).try_cast("bigint"))

    def write(self, value: Column, kind: T.DataType) -> Column:
        """Return the bytes of a whole number."""
        if not isinstance(kind, T.IntegralType | T.NullType):
            msg = f"LongCodec writes whole numbers, not {kind.simpleString()}"
            raise ConfigError(msg, fix="cast the column to BIGINT")
        return F.unhex(F.lpad(F.hex(value.cast("bigint")), 16, F.lit("0")))
