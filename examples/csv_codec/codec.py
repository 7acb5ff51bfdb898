"""A codec of your own: one line of comma-separated values for each record."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from pyspark.sql import types as T

from kpipe_platform import Codec, DecodeFault, EncodeFault, JsonCodec

READ: dict[str, Callable[[str], Any]] = {
    "string": str,
    "bigint": int,
    "double": float,
    "date": lambda text: dt.date.fromisoformat(text.strip()),
}
WRITE: dict[str, tuple[type, Callable[[Any], str]]] = {
    "string": (str, str),
    "bigint": (int, str),
    "double": (float, repr),
    "date": (dt.date, dt.date.isoformat),
}


@lru_cache
def columns_of(schema: str) -> T.StructType:
    """Parse the schema once, and not for each record."""
    return JsonCodec(schema).fields


@dataclass(frozen=True)
class CsvCodec(Codec):
    """Decodes and encodes one line of CSV (RFC 4180), in UTF-8 and without a header. An empty field is a null.

    Args:
        schema: The columns in their order: DDL text with STRING, BIGINT, DOUBLE and DATE.
    """

    name: ClassVar[str] = "csv"
    schema: str

    @property
    def value_type(self) -> T.StructType:
        """The columns."""
        return columns_of(self.schema)

    def _decode(self, data: bytes) -> dict[str, Any]:
        try:
            rows = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DecodeFault(f"not CSV: {error}", kind="not_csv") from None
        columns = self.value_type
        if len(rows) != 1 or len(rows[0]) != len(columns):
            found = f"{len(rows)} lines" if len(rows) != 1 else f"{len(rows[0])} fields"
            raise DecodeFault(f"expected a line of {len(columns)} fields, found {found}", kind="not_csv")
        return {column.name: self._read(column, text) for column, text in zip(columns, rows[0], strict=True)}

    def _read(self, column: T.StructField, text: str) -> Any:
        if not text:
            if not column.nullable:
                raise DecodeFault(f"column {column.name!r} is required but empty", kind="null_field")
            return None
        kind = column.dataType.simpleString()
        try:
            value = READ[kind](text)
        except ValueError:
            value = None
        if value is None or (kind == "bigint" and not -(2**63) <= value < 2**63):
            raise DecodeFault(f"column {column.name!r}: expected {kind}, found {text!r:.60}", kind="wrong_type")
        return value

    def _encode(self, value: Any) -> bytes:
        columns = self.value_type
        unknown = sorted(value.keys() - set(columns.names)) if isinstance(value, dict) else [repr(value)]
        if unknown:
            raise EncodeFault(f"{unknown[0]} is not a column of {self.schema}", kind="not_encodable")
        line = io.StringIO(newline="")
        row = [self._write(column, value.get(column.name)) for column in columns]
        csv.writer(line, lineterminator="").writerow(row)
        return line.getvalue().encode()

    def _write(self, column: T.StructField, value: Any) -> str:
        if value is None and column.nullable:
            return ""
        kind, write = WRITE[column.dataType.simpleString()]
        if type(value) is not kind or value == "":
            raise EncodeFault(f"column {column.name!r} cannot hold {value!r:.60}", kind="not_encodable")
        return write(value)
