"""The codec for plain records of Kafka Connect's ``JsonConverter``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.connect import embedded
from kpipe_platform.codecs.connect.row import CONNECT, DECIMALS, Row, bound, declared_row, types_of
from kpipe_platform.codecs.faults import NULL_FIELD, DecodeFault
from kpipe_platform.codecs.json.codec import JsonCodec
from kpipe_platform.codecs.json.write import plain_value
from kpipe_platform.codecs.schema import schema_of, to_ddl
from kpipe_platform.errors import ConfigError


@dataclass(frozen=True)
class ConnectJsonCodec(Codec):
    """Decodes and encodes records of Kafka Connect's ``JsonConverter``: an object with ``schema`` and ``payload``.

    Args:
        columns: The fields of the payload, as in `JsonCodec`.
        types: Semantic types by the path of a column, for example
            ``{"created": "io.debezium.time.MicroTimestamp"}``. By default a DATE, TIMESTAMP or TIMESTAMP_NTZ column has
            Kafka Connect's ``Date`` or ``Timestamp``. The elements of an array have the path of the array.
        decimals: How DECIMAL columns are represented, as Debezium's ``decimal.handling.mode``: ``precise`` (Kafka
            Connect's ``Decimal``, the default), ``string`` or ``double``. Use ``double`` too for
            ``decimal.format=NUMERIC`` of the converter.
        schemas: Whether records have a schema and a payload, as the converter's ``schemas.enable``. False: a record is
            the payload.

    Raises:
        ConfigError: A setting is invalid, or a semantic type does not fit its column.
    """

    name: ClassVar[str] = "connect_json"
    columns: Any
    types: Any = ()
    decimals: Literal["precise", "string", "double"] = "precise"
    schemas: bool = True
    _row: Row = field(init=False, repr=False, compare=False, default=Row(T.StructType()))
    _json: JsonCodec = field(init=False, repr=False, compare=False, default=JsonCodec())

    def __post_init__(self) -> None:
        fields = JsonCodec(self.columns).fields
        check_decimals(self.decimals)
        object.__setattr__(self, "columns", to_ddl(schema_of(self.columns)))
        object.__setattr__(self, "types", types_of(self.types))
        row = declared_row(fields, self.types, CONNECT, self.decimals)
        object.__setattr__(self, "_row", row)
        record = row.physical()
        if self.schemas:
            schema = T.StructType().add("fields", embedded.FIELDS)
            record = T.StructType().add("payload", record).add("schema", schema)
            embedded.schema_for(row)
        object.__setattr__(self, "_json", JsonCodec(record, include_nulls=True))

    is_struct: ClassVar[bool] = True

    @property
    def fields(self) -> T.StructType:
        """The declared fields of the payload."""
        return self._row.fields

    @property
    def value_type(self) -> T.DataType:
        """The struct of the fields, in the types that a stage gets."""
        return self._row.value_type

    def parse(self, data: Column) -> Column:
        """Parse JSON text with ``from_json``. The result has what it returned, and the record."""
        parsed = self._json.parse(data)
        return bound(parsed, lambda one: F.struct(one.alias("parsed"), self._json.value(one).alias("record")))

    def value(self, parsed: Column) -> Column:
        """Return the struct of the fields."""
        record = parsed["record"]
        return bound(record["payload"] if self.schemas else record, self._row.column)

    def fault(self, data: Column, parsed: Column) -> Column:
        """Return whether the text is not a record that fits the fields."""
        bad = self._json.fault(data, parsed["parsed"])
        if not self.schemas:
            return bad | bound(parsed["record"], self._row.unfit)
        return bad | (data.isNotNull() & bound(parsed["record"], self._is_unfit))

    def _is_unfit(self, record: Column) -> Column:
        payload = record["payload"]
        differs = embedded.differs(self._row, record["schema"]["fields"])
        return payload.isNull() | self._row.unfit(payload) | differs

    def _decode(self, data: bytes) -> Any:
        record = self._json.decode(data)
        if not self.schemas:
            return self._row.from_record(record, "")
        if record["payload"] is None:
            fix = "use schemas=False if the converter has schemas.enable=false"
            raise DecodeFault('the record has no "payload"', kind=NULL_FIELD, field="payload", fix=fix)
        embedded.check(self._row, (record["schema"] or {}).get("fields"))
        return self._row.from_record(record["payload"], "")

    def _encode(self, value: Any) -> bytes:
        payload = self._row.to_record(plain_value(value), "")
        if self.schemas:
            payload = {"schema": embedded.schema_for(self._row), "payload": payload}
        return self._json._encode(payload)


def check_decimals(decimals: str) -> None:
    """Check a setting ``decimals``.

    Raises:
        ConfigError: It is unknown.
    """
    if decimals not in DECIMALS:
        msg = f"decimals={decimals!r}"
        raise ConfigError(msg, fix=f"use one of {', '.join(map(repr, DECIMALS))}", setting="decimals")
