"""The codec for Debezium's change events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.base import Codec, Part, TableChanges, any_of
from kpipe_platform.codecs.connect import embedded
from kpipe_platform.codecs.connect.codec import check_decimals
from kpipe_platform.codecs.connect.row import DEBEZIUM, Row, bound, declared_row, row_over, types_of
from kpipe_platform.codecs.faults import MISSING_FIELD, NOT_ENCODABLE, WRONG_TYPE, DecodeFault, EncodeFault
from kpipe_platform.codecs.json.codec import JsonCodec
from kpipe_platform.codecs.json.write import plain_value
from kpipe_platform.codecs.schema import schema_of, to_ddl
from kpipe_platform.errors import ConfigError

if TYPE_CHECKING:
    from kpipe_platform.registry.client import RegistryClient

SOURCE = (
    "version STRING, connector STRING, name STRING, ts_ms BIGINT, snapshot STRING, db STRING, sequence STRING, "
    "`schema` STRING, `table` STRING"
)
"""The fields of ``source`` that most of Debezium's connectors write."""

WITH_ROW = ("c", "r", "u")
"""Operations after which the row exists: create, read (of a snapshot) and update."""
DELETE, TRUNCATE, MESSAGE = "d", "t", "m"
OPERATIONS = (*WITH_ROW, DELETE, TRUNCATE, MESSAGE)

_COLUMNS = ("op", "before", "after", "source", "ts_ms")


@dataclass(frozen=True)
class DebeziumCodec(Codec):
    """Decodes and encodes Debezium's change events.

    Columns:
        op: STRING: ``c`` (create), ``u`` (update), ``d`` (delete), ``r`` (read, of a snapshot), ``t`` (truncate) or
            ``m`` (message).
        before: STRUCT of the row before the change. Its fields may be null, because a database need not log them all.
        after: STRUCT of the row after the change; null for a delete, a truncate and a message.
        source: STRUCT that says where the change comes from. ``source.ts_ms`` is the time of the change.
        ts_ms: BIGINT, the time at which Debezium processed the change, milliseconds since 1970.

    JSON events may be in an envelope with a schema (``schemas.enable`` of the converter) or not; a topic may have both.
    If an event has a schema, it must give the columns the semantic types of the codec. Events are written without it.

    Args:
        row: Columns of the table, as in `JsonCodec`, if events are JSON; else the codec of the whole event, for example
            ``AvroCodec()``. Columns that are not declared are ignored.
        types: Semantic types by the path of a column, for example ``{"created": "io.debezium.time.Timestamp"}``. By
            default in JSON, a DATE is ``io.debezium.time.Date``, a TIMESTAMP_NTZ ``io.debezium.time.MicroTimestamp``
            and a TIMESTAMP ``io.debezium.time.ZonedTimestamp``. Another codec has no defaults.
        decimals: How JSON has DECIMAL columns: ``precise`` (the default), ``string`` or ``double``, as Debezium's
            ``decimal.handling.mode``.
        source: Fields of ``source`` in JSON. Default: those that most connectors write.

    Raises:
        ConfigError: A setting is invalid, or a semantic type does not fit its column.

    Source: Debezium's documentation of its connectors, "Data change events".
    """

    name: ClassVar[str] = "debezium"
    row: Any
    types: Any = ()
    decimals: Literal["precise", "string", "double"] = "precise"
    source: Any = SOURCE
    _row: Row = field(init=False, repr=False, compare=False, default=Row(T.StructType()))
    _json: JsonCodec = field(init=False, repr=False, compare=False, default=JsonCodec())

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", types_of(self.types))
        check_decimals(self.decimals)
        if isinstance(self.row, Codec):
            self._over(self.row)
            return
        fields = JsonCodec(self.row).fields
        object.__setattr__(self, "row", to_ddl(schema_of(self.row)))
        source = JsonCodec(self.source).fields
        object.__setattr__(self, "source", to_ddl(source))
        row = declared_row(fields, self.types, DEBEZIUM, self.decimals)
        object.__setattr__(self, "_row", row)
        event = _event(row, source)
        schema = T.StructType().add(
            "fields", T.ArrayType(T.StructType().add("field", T.StringType()).add("fields", embedded.FIELDS))
        )
        record = T.StructType([T.StructField("payload", event), T.StructField("schema", schema), *event])
        object.__setattr__(self, "_json", JsonCodec(record, include_nulls=True))

    def _over(self, inner: Codec) -> None:
        if not inner.is_struct:
            msg = f"DebeziumCodec({type(inner).__name__}(...)): this codec has no fields"
            raise ConfigError(msg, fix="use a codec for structured values, such as AvroCodec()")
        if not inner.fields:
            return  # known after the registry was asked
        missing = [name for name in ("op", "before", "after") if name not in inner.fields.names]
        rows = [inner.fields[name].dataType for name in ("before", "after") if not missing]
        if missing or not all(isinstance(one, T.StructType) for one in rows):
            what = f"no field {missing[0]!r}" if missing else "a before or after that is not a struct"
            msg = f"DebeziumCodec({type(inner).__name__}(...)): the schema has {what}"
            raise ConfigError(msg, fix="use this codec for topics of Debezium only, without a transform of the event")
        after = rows[1]
        assert isinstance(after, T.StructType)  # noqa: S101
        object.__setattr__(self, "_row", row_over(after, self.types))

    @property
    def inner(self) -> Codec:
        """The codec of the whole event."""
        return self.row if isinstance(self.row, Codec) else self._json

    @property
    def is_json(self) -> bool:
        """Whether events are JSON whose row the user declared."""
        return not isinstance(self.row, Codec)

    is_struct: ClassVar[bool] = True

    @property
    def fields(self) -> T.StructType:
        """The columns."""
        if not self._row.fields:
            return T.StructType()
        event = {each.name: each for each in self.inner.fields}
        found = _event(self._row, event["source"].dataType if "source" in event else None)
        columns = {each.name: each.dataType for each in found} | {
            name: event[name].dataType for name in ("source", "ts_ms") if name in event
        }
        before, after = (T.StructField(name, kind) for name, kind in self._rows())
        named = {"op": T.StructField("op", T.StringType(), nullable=False), "before": before, "after": after}
        return T.StructType(
            [named.get(name) or T.StructField(name, columns[name]) for name in _COLUMNS if name in event]
        )

    def _rows(self) -> list[tuple[str, T.DataType]]:
        optional = Row(self._row.fields).physical(required=False)
        return [("before", optional), ("after", self._row.fields)]

    @property
    def value_type(self) -> T.DataType:
        """The struct of the columns, in the types that a stage gets."""
        return Row(self.fields).value_type

    @property
    def has_schema(self) -> bool:
        """Whether the columns are known."""
        return self.inner.has_schema

    # The schema registry, which only the inner codec uses

    @property
    def is_framed(self) -> bool:
        """Whether the id of its schema is in front of each value."""
        return self.inner.is_framed

    def id_header(self, part: Part) -> str | None:
        """Name of a record header that may have the id of the record's schema."""
        return self.inner.id_header(part)

    def resolved(
        self, registry: RegistryClient | None, topic: str, part: Part, ids: Collection[bytes] | None = None
    ) -> Codec:
        """Return the codec to read with, whose inner codec needs no registry."""
        return self if self.is_json else replace(self, row=self.inner.resolved(registry, topic, part, ids))

    def resolved_to_write(
        self, registry: RegistryClient | None, topic: str, part: Part, kind: T.DataType | None
    ) -> Codec:
        """Return the codec to write with, whose inner codec needs no registry."""
        if self.is_json:
            return self
        return replace(self, row=self.inner.resolved_to_write(registry, topic, part, kind and self._written(kind)))

    def _written(self, kind: T.DataType) -> T.DataType:
        """The type of the event that is written, from that of the columns."""
        if not isinstance(kind, T.StructType):
            return kind
        fields = [
            _with_type(one, Row(one.dataType, self.types).physical())
            if one.name in ("before", "after") and isinstance(one.dataType, T.StructType)
            else one
            for one in kind
        ]
        return T.StructType(fields)

    # Spark expressions

    def parse(self, data: Column) -> Column | None:
        """Parse the event with the inner codec's expression. The result has what it returned, and the event."""
        parsed = self.inner.parse(data)
        if parsed is None:
            return None
        return bound(parsed, lambda one: F.struct(one.alias("parsed"), self._event_of(one).alias("event")))

    def value(self, parsed: Column) -> Column:
        """Return the struct of the columns."""
        if not self.inner.is_expression:
            return parsed
        return bound(parsed["event"], self._columns_of)

    def _columns_of(self, event: Column) -> Column:
        columns = [
            (bound(event[name], self._row.column) if name in ("before", "after") else event[name]).alias(name)
            for name in self.fields.names
        ]
        return F.when(event.isNotNull(), F.struct(*columns))

    def fault(self, data: Column, parsed: Column) -> Column | None:
        """Return whether the bytes are not a change event that fits the columns."""
        if not self.inner.is_expression:
            return super().fault(data, parsed)
        inner = self.inner.fault(data, parsed["parsed"])
        bad = bound(parsed["event"], self._is_unfit)
        if self.is_json:
            fields = self._json.value(parsed["parsed"])["schema"]["fields"]
            own = lambda one: one["field"].isin("before", "after") & embedded.differs(self._row, one["fields"])  # noqa: E731
            bad = bad | F.coalesce(F.exists(fields, own), F.lit(False))
        return data.isNotNull() & (bad if inner is None else bad | F.coalesce(inner, F.lit(False)))

    def _is_unfit(self, event: Column) -> Column:
        op, before, after = event["op"], event["before"], event["after"]
        conditions = [
            ~F.coalesce(op.isin(*OPERATIONS), F.lit(False)),
            op.isin(*WITH_ROW) & after.isNull(),
            (op == DELETE) & after.isNotNull(),
            bound(before, self._row.unfit),
            bound(after, self._row.unfit),
        ]
        return any_of(F.coalesce(one, F.lit(False)) for one in conditions)

    def _event_of(self, parsed: Column) -> Column:
        value = self.inner.value(parsed)
        if not self.is_json:
            return value
        names = self._json.fields["payload"].dataType
        assert isinstance(names, T.StructType)  # noqa: S101
        bare = F.struct(*[value[name].alias(name) for name in names.names])
        return F.coalesce(value["payload"], F.when(value.isNotNull(), bare))

    def table_changes(self, value: Column) -> TableChanges:
        """Return how an event changes a table: a delete removes the row of its key, a truncate all rows."""
        op = value["op"]
        at_ms = value["source"]["ts_ms"] if self._has_time else F.lit(None).cast("bigint")
        return TableChanges(removes=~op.isin(*WITH_ROW), clears=op == TRUNCATE, at_ms=at_ms)

    @property
    def _has_time(self) -> bool:
        if "source" not in self.fields.names:
            return False
        source = self.fields["source"].dataType
        return isinstance(source, T.StructType) and "ts_ms" in source.names

    # One record in Python

    def _decode(self, data: bytes) -> Any:
        event = self.inner.decode(data)
        if self.is_json:
            schema = (event["schema"] or {}).get("fields") or ()
            event = event["payload"] or event
            for one in schema:
                if one is not None and one["field"] in ("before", "after"):
                    embedded.check(self._row, one["fields"], one["field"])
        _check(event)
        rows = {name: self._row.from_record(event[name], name) for name in ("before", "after")}
        return {name: rows[name] if name in rows else event[name] for name in self.fields.names}

    def _encode(self, value: Any) -> bytes:
        event = plain_value(value)
        if not isinstance(event, Mapping):
            msg = f"a change event is a dict with op, before and after, not {type(value).__name__}"
            raise EncodeFault(msg, kind=NOT_ENCODABLE)
        try:
            _check({"before": None, "after": None, "op": None, **event})
        except DecodeFault as fault:
            raise EncodeFault(fault.message, kind=NOT_ENCODABLE, field=fault.field) from None
        rows = {name: self._row.to_record(event.get(name), name) for name in ("before", "after")}
        return self.inner.encode({**event, **rows}) or b""


def _with_type(one: T.StructField, kind: T.DataType) -> T.StructField:
    """The field with another type."""
    return T.StructField(one.name, kind, one.nullable, one.metadata)


def _event(row: Row, source: T.DataType | None) -> T.StructType:
    event = T.StructType().add("before", row.physical(required=False)).add("after", row.physical())
    if source is not None:
        event = event.add("source", source)
    return event.add("op", T.StringType()).add("ts_ms", T.LongType())


def _check(event: Mapping[str, Any]) -> None:
    """Check the operation of an event, and whether it has a row.

    Raises:
        DecodeFault: They are wrong.
    """
    op, after = event["op"], event["after"]
    if op is None:
        message = 'field "op" is missing: this is not a change event of Debezium'
        raise DecodeFault(message, kind=MISSING_FIELD, field="op")
    if op not in OPERATIONS:
        message = f'field "op": {str(op)[:20]!r} is not one of {", ".join(OPERATIONS)}'
        raise DecodeFault(message, kind=WRONG_TYPE, field="op")
    if op in WITH_ROW and after is None:
        message = f'field "after" is missing, but the operation {op!r} leaves a row'
        raise DecodeFault(message, kind=MISSING_FIELD, field="after")
    if op == DELETE and after is not None:
        message = "field \"after\" is a row, but the operation is 'd' (delete)"
        raise DecodeFault(message, kind=WRONG_TYPE, field="after")
