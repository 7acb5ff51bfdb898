"""The fields of a record as a small tree, and how it reads as Spark DDL.

Spark's own types are not used here, because a schema travels where pyspark is not imported: in asset
definitions, in the writer's tasks, in the command line. `kpipe_platform.codecs.ddl` makes the tree of DDL
text.

Source: Spark SQL reference, "Data Types" and the grammar rule ``colTypeList``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

SCALARS = {
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "decimal": "decimal",
    "dec": "decimal",
    "numeric": "decimal",
    "string": "string",
    "varchar": "varchar",
    "char": "char",
    "character": "char",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "timestamp_millis": "timestamp_millis",
    "timestamp_micros": "timestamp_micros",
}
"""Names of scalar types in DDL, with the one that is used for each here."""

EPOCH_UNITS = {"timestamp_millis": 1_000, "timestamp_micros": 1_000_000}
"""Types that are a TIMESTAMP to the stage and a whole number in JSON, with how many of its units a second has."""

MAX_PRECISION = 38
"""Most digits of a decimal in Spark."""


@dataclass(frozen=True)
class ScalarType:
    """A type without fields of its own.

    Args:
        name: A value of `SCALARS`.
        arguments: Precision and scale of a decimal, length of a varchar or char, else nothing.
    """

    name: str
    arguments: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}({','.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class ArrayType:
    """A list of values of one type; an element may be null."""

    element: DataType

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True)
class MapType:
    """Values of one type by key; a value may be null."""

    key: DataType
    value: DataType

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True)
class StructType:
    """Named fields in their order."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{field.name}:{field.type}' for field in self.fields)}>"


DataType: TypeAlias = ScalarType | ArrayType | MapType | StructType


@dataclass(frozen=True)
class Field:
    """One field of a struct.

    Args:
        name: The field's name; names match exactly, upper and lower case being different.
        type: Its type.
        required: True for NOT NULL: the field must be present and not null.
        comment: What the field means, or None.
    """

    name: str
    type: DataType
    required: bool = False
    comment: str | None = None


def to_ddl(fields: Iterable[Field]) -> str:
    """The fields as DDL text that `kpipe_platform.codecs.ddl.parse_ddl` reads back as the same tree."""
    return ", ".join(_column(field, " ", for_spark=False) for field in fields)


def to_spark_ddl(fields: Iterable[Field]) -> str:
    """The fields as DDL text for Spark's ``from_json``.

    Without NOT NULL, because ``from_json`` does not check it and some settings make it trust it; VARCHAR
    and CHAR as STRING, because ``from_json`` refuses both; TIMESTAMP_MILLIS and TIMESTAMP_MICROS as BIGINT, which
    they are in JSON; without comments.
    """
    return ", ".join(_column(field, " ", for_spark=True) for field in fields)


def _column(field: Field, separator: str, *, for_spark: bool) -> str:
    text = f"{quoted_name(field.name)}{separator}{_type_ddl(field.type, for_spark=for_spark)}"
    if for_spark:
        return text
    if field.required:
        text += " NOT NULL"
    if field.comment is not None:
        escaped = field.comment.replace("\\", "\\\\").replace("'", "\\'")
        text += f" COMMENT '{escaped}'"
    return text


def _type_ddl(kind: DataType, *, for_spark: bool) -> str:
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_ddl(kind.element, for_spark=for_spark)}>"
    if isinstance(kind, MapType):
        key, value = (_type_ddl(part, for_spark=for_spark) for part in (kind.key, kind.value))
        return f"MAP<{key}, {value}>"
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(_column(field, ': ', for_spark=for_spark) for field in kind.fields)}>"
    if for_spark and kind.name in ("varchar", "char"):
        return "STRING"
    if for_spark and kind.name in EPOCH_UNITS:
        return "BIGINT"
    return str(kind).upper()


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted_name(name: str) -> str:
    """A column name as SQL needs it: in backquotes unless it is a plain word."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
