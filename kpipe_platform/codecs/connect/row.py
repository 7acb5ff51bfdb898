"""Columns of a row whose record has Connect's or Debezium's semantic types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.base import any_of
from kpipe_platform.codecs.connect.semantics import SEMANTICS, Semantic, UnfitError
from kpipe_platform.codecs.faults import NOT_ENCODABLE, WRONG_TYPE, DecodeFault, EncodeFault
from kpipe_platform.codecs.types import field_path, map_fields, stage_type
from kpipe_platform.errors import ConfigError

_Convert: TypeAlias = Callable[[str, Any, T.DataType, str], Any]

Types = tuple[tuple[str, str], ...]
"""Semantic types by the path of a field."""

DECIMAL = "org.apache.kafka.connect.data.Decimal"
DECIMALS = {"precise": DECIMAL, "string": "STRING", "double": "FLOAT64"}
"""Semantic types of a DECIMAL by Debezium's ``decimal.handling.mode``."""

DEBEZIUM: Mapping[type[T.DataType], str] = {
    T.DateType: "io.debezium.time.Date",
    T.TimestampNTZType: "io.debezium.time.MicroTimestamp",
    T.TimestampType: "io.debezium.time.ZonedTimestamp",
}
"""The usual semantic types of Debezium, by type of column other than DECIMAL."""

CONNECT: Mapping[type[T.DataType], str] = {
    T.DateType: "org.apache.kafka.connect.data.Date",
    T.TimestampNTZType: "org.apache.kafka.connect.data.Timestamp",
    T.TimestampType: "org.apache.kafka.connect.data.Timestamp",
}
"""The semantic types of Kafka Connect, by type of column other than DECIMAL."""


def bound(value: Column, make: Callable[[Column], Column]) -> Column:
    """Make a column of a value that it uses several times, and evaluate the value once.

    Spark would put the value's whole expression into each place that uses it, and take seconds to compile the result.
    """
    return F.get(F.transform(F.array(value), make), 0)


def types_of(types: object) -> Types:
    """Normalize a mapping from paths to names of semantic types.

    Raises:
        ConfigError: It is not such a mapping, or a name is unknown.
    """
    try:
        pairs = types.items() if isinstance(types, Mapping) else [(path, name) for path, name in types]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        msg = f"types is {types!r}, which is not a dict of columns and semantic types"
        raise ConfigError(msg, fix='for example types={"created": "io.debezium.time.Timestamp"}') from None
    for path, name in pairs:
        if not isinstance(path, str) or name not in SEMANTICS:
            msg = f"types: {path!r} has the semantic type {name!r}, which is unknown"
            fix = f"use one of {', '.join(sorted(SEMANTICS))}; leave out a type that needs no conversion"
            raise ConfigError(msg, fix=fix, column=path)
    return tuple(sorted(pairs))


@dataclass(frozen=True)
class Row:
    """Columns, and how their values are represented in a record.

    Attributes:
        fields: The columns.
        types: Semantic types by the path of the column. The elements of an array have the path of the array.
    """

    fields: T.StructType
    types: Types = ()

    @property
    def value_type(self) -> T.StructType:
        """The columns in the types that a stage gets."""
        kind = stage_type(self.fields)
        assert isinstance(kind, T.StructType)  # noqa: S101
        return kind

    def type_name(self, path: str) -> str:
        """Name of the semantic type of a column; empty if it has none."""
        return dict(self.types).get(path, "")

    def semantic(self, path: str) -> Semantic | None:
        """The semantic type of a column; None if the value in the record is that of the column."""
        return SEMANTICS.get(self.type_name(path))

    def physical(self, *, required: bool = True) -> T.StructType:
        """The fields in the record.

        Args:
            required: Whether fields that are NOT NULL are so in the record.
        """

        def physical(kind: T.DataType, path: str) -> T.DataType:
            semantic = self.semantic(path)
            return kind if semantic is None else semantic.physical(kind)

        return map_fields(self.fields, physical, keep_not_null=required)

    def column(self, value: Column) -> Column:
        """Convert a struct of the record to the struct of the columns."""
        # A record may have further fields.
        return self._struct(self.fields, value, "")

    def unfit(self, value: Column) -> Column:
        """A condition that is true if a column cannot represent its value in the record."""
        return _either(self._unfit(self.fields, value, ""))

    def from_record(self, value: Any, where: str) -> Any:
        """Convert a dict of the record to one of the columns.

        Raises:
            DecodeFault: A column cannot represent its value.
        """

        def convert(name: str, one: Any, kind: T.DataType, at: str) -> Any:
            try:
                return SEMANTICS[name].from_record(one, kind)
            except UnfitError as error:
                message = f'field "{at}": {error} (declared {kind.simpleString()} of {name})'
                raise DecodeFault(message, kind=WRONG_TYPE, field=at) from None

        return self._python(self.fields, value, "", where, convert)

    def to_record(self, value: Any, where: str) -> Any:
        """Convert a dict of the columns to one of the record.

        Raises:
            EncodeFault: The record cannot represent a value.
        """

        def convert(name: str, one: Any, kind: T.DataType, at: str) -> Any:
            try:
                return SEMANTICS[name].to_record(one, kind)
            except UnfitError as error:
                raise EncodeFault(f'field "{at}": {error}', kind=NOT_ENCODABLE, field=at) from None

        return self._python(self.fields, value, "", where, convert)

    def _changes(self, kind: T.DataType, path: str) -> bool:
        return any(self.semantic(each) is not None for each, _ in _leaves(kind, path))

    def _column(self, kind: T.DataType, value: Column, path: str) -> Column:
        if not self._changes(kind, path):
            return value
        if isinstance(kind, T.StructType):
            return self._struct(kind, value, path)
        if isinstance(kind, T.ArrayType):
            element = kind.elementType
            return F.transform(value, lambda one: self._column(element, one, path))
        if isinstance(kind, T.MapType):
            entry = kind.valueType
            return F.transform_values(value, lambda _, one: self._column(entry, one, path))
        semantic = self.semantic(path)
        return value if semantic is None else semantic.column(value, kind)

    def _struct(self, kind: T.StructType, value: Column, path: str) -> Column:
        fields = [
            self._column(field.dataType, value[field.name], field_path(path, field.name)).alias(field.name)
            for field in kind
        ]
        return F.when(value.isNotNull(), F.struct(*fields))

    def _unfit(self, kind: T.DataType, value: Column, path: str) -> Iterator[Column]:
        if not self._changes(kind, path):
            return
        if isinstance(kind, T.StructType):
            for field in kind:
                yield from self._unfit(field.dataType, value[field.name], field_path(path, field.name))
        elif isinstance(kind, T.ArrayType | T.MapType):
            element = kind.elementType if isinstance(kind, T.ArrayType) else kind.valueType
            values = value if isinstance(kind, T.ArrayType) else F.map_values(value)
            yield F.exists(values, lambda one: _either(self._unfit(element, one, path)))
        else:
            semantic = self.semantic(path)
            if semantic is not None:
                yield value.isNotNull() & semantic.column(value, kind).isNull()

    def _python(
        self,
        kind: T.DataType,
        value: Any,
        path: str,
        where: str,
        convert: _Convert,
    ) -> Any:
        if value is None or not self._changes(kind, path):
            return value
        if isinstance(kind, T.StructType) and isinstance(value, Mapping):
            kinds = {field.name: field.dataType for field in kind}
            return {
                name: self._python(kinds[name], one, field_path(path, name), field_path(where, name), convert)
                if name in kinds
                else one
                for name, one in value.items()
            }
        if isinstance(kind, T.ArrayType) and isinstance(value, list | tuple):
            element = kind.elementType
            return [self._python(element, one, path, f"{where}[{i}]", convert) for i, one in enumerate(value)]
        if isinstance(kind, T.MapType) and isinstance(value, Mapping):
            entry = kind.valueType
            return {name: self._python(entry, one, path, f"{where}[{name!r}]", convert) for name, one in value.items()}
        name = self.type_name(path)
        return convert(name, value, kind, where) if name else value


def declared_row(fields: T.StructType, types: Types, usual: Mapping[type[T.DataType], str], decimals: str) -> Row:
    """The row of columns that the user declared, for JSON.

    Args:
        fields: The columns.
        types: Semantic types of some of them.
        usual: Semantic types of the others, by type of column.
        decimals: One of `DECIMALS`.

    Raises:
        ConfigError: There is no such column, or a column cannot have the type.
    """
    given, found = dict(types), {}
    for path, kind in _leaves(fields, ""):
        name = given.pop(path, None)
        if name is None:
            name = DECIMALS[decimals] if isinstance(kind, T.DecimalType) else usual.get(type(kind))
        else:
            _check(path, kind, name)
        if name is not None:
            found[path] = name
    _refuse_rest(given, fields)
    return Row(fields, tuple(sorted(found.items())))


def row_over(physical: T.StructType, types: Types) -> Row:
    """The row of a struct that another codec decodes, some of whose fields have semantic types.

    Raises:
        ConfigError: There is no such field, or it cannot have the type.
    """
    given = dict(types)

    def change(kind: T.DataType, path: str) -> T.DataType:
        name = given.get(path)
        if name is not None and name in SEMANTICS:
            semantic = SEMANTICS[name]
            if same(semantic.physical(kind), kind) and not isinstance(semantic.columns[0](), T.DecimalType):
                del given[path]
                return semantic.columns[0]()
            msg = f"types: {path!r} is {kind.simpleString()} in the records, which is not the form of {name}"
            raise ConfigError(msg, fix="correct types, or remove the column from it", column=path)
        return kind

    fields = map_fields(physical, change, keep_not_null=True)
    _refuse_rest(given, physical)
    return Row(fields, types)


def same(one: T.DataType, other: T.DataType) -> bool:
    """Whether two types are equal but for nullability and metadata."""
    return one.simpleString() == other.simpleString()


def _check(path: str, kind: T.DataType, name: str) -> None:
    columns = SEMANTICS[name].columns
    if not isinstance(kind, columns):
        fit = " or ".join(column.typeName().upper() for column in columns)
        msg = f"types: column {path!r} is {kind.simpleString()}, but {name} becomes {fit}"
        raise ConfigError(msg, fix=f"declare it as {fit}, or remove it from types", column=path)


def _refuse_rest(rest: Mapping[str, str], fields: T.StructType) -> None:
    for path in rest:
        known = ", ".join(path for path, _ in _leaves(fields, ""))
        msg = f"types: there is no column {path!r}"
        raise ConfigError(msg, fix=f"the columns are {known}", column=path)


def _leaves(kind: T.DataType, path: str) -> Iterator[tuple[str, T.DataType]]:
    if isinstance(kind, T.StructType):
        for field in kind:
            yield from _leaves(field.dataType, field_path(path, field.name))
    elif isinstance(kind, T.ArrayType):
        yield from _leaves(kind.elementType, path)
    elif isinstance(kind, T.MapType):
        yield from _leaves(kind.valueType, path)
    else:
        yield path, kind


def _either(conditions: Iterator[Column]) -> Column:
    return any_of(F.coalesce(one, F.lit(False)) for one in conditions)
