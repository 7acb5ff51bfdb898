"""Codecs as a user may write them first: what they raise is whatever a library raises."""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from pyspark.sql import types as T

from kpipe_platform import Codec, JsonCodec


@dataclass(frozen=True)
class LongCodec(Codec):
    """A BIGINT in 8 bytes, as Java's LongSerializer writes it."""

    name: ClassVar[str] = "long"

    @property
    def value_type(self) -> T.DataType:
        return T.LongType()

    def _decode(self, data: bytes) -> int:
        (value,) = struct.unpack(">q", data)
        return int(value)

    def _encode(self, value: Any) -> bytes:
        return struct.pack(">q", value)


@dataclass(frozen=True)
class TypedCodec(Codec):
    """A JSON array with a value of each kind of type."""

    name: ClassVar[str] = "typed"

    @property
    def value_type(self) -> T.StructType:
        return JsonCodec(
            "price DECIMAL(38,18) NOT NULL, at TIMESTAMP NOT NULL, local TIMESTAMP_NTZ, day DATE, data BINARY, "
            "legs ARRAY<STRUCT<code: STRING NOT NULL, stops: ARRAY<INT>>>, tags MAP<STRING, INT>, ratio FLOAT"
        ).fields

    def _decode(self, data: bytes) -> dict[str, Any]:
        price, at, local, day, content, legs, tags, ratio = json.loads(data)
        return {
            "price": Decimal(price),
            "at": dt.datetime.fromisoformat(at),
            "local": None if local is None else dt.datetime.fromisoformat(local),
            "day": None if day is None else dt.date.fromisoformat(day),
            "data": None if content is None else base64.b64decode(content, validate=True),
            "legs": None if legs is None else [{"code": code, "stops": stops} for code, stops in legs],
            "tags": tags,
            "ratio": ratio,
        }

    def _encode(self, value: Any) -> bytes:
        local, day, content, legs = (value[name] for name in ("local", "day", "data", "legs"))
        row = [
            format(value["price"], "f"),
            value["at"].astimezone(dt.timezone.utc).isoformat(),
            None if local is None else local.isoformat(),
            None if day is None else day.isoformat(),
            None if content is None else base64.b64encode(content).decode(),
            None if legs is None else [[leg["code"], leg["stops"]] for leg in legs],
            value["tags"],
            value["ratio"],
        ]
        return json.dumps(row, separators=(",", ":")).encode()
