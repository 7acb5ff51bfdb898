"""Conversion of a row function's input and results from and to Arrow.

A result that does not fit the schema raises ``ResultError``.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa

from kpipe_platform.codecs.exact import MISFITS, MisfitError, check_exact, exact_array, exact_cast

_FLOAT = struct.Struct("f")


class ResultError(ValueError):
    """A row function's result does not fit its schema."""


# Input of the function


def records_of(rows: pa.RecordBatch | pa.Table, zone: dt.tzinfo | None = None) -> list[dict[str, Any]]:
    """Convert rows to dicts. Maps become dicts, and a FLOAT becomes the float with the fewest digits that equals it.

    Args:
        rows: The rows.
        zone: Time zone to which zoned timestamps are converted; None keeps their own. Spark leaves UTC inside nested
            types.
    """
    records: list[dict[str, Any]] = rows.to_pylist()
    for field in rows.schema:
        if _differs(field.type, zone):
            for record in records:
                record[field.name] = _plain(record[field.name], field.type, zone)
    return records


def pandas_frame(rows: pa.RecordBatch | pa.Table) -> Any:
    """Convert rows to a pandas.DataFrame without changing any value.

    An integer column with nulls becomes a nullable integer such as ``Int64``: pandas would use floats, which change
    integers above 2**53. Structs and maps become dicts, and arrays become lists: pandas would use numpy arrays, which
    have the same problem.
    """
    import pandas as pd

    frame = rows.to_pandas(maps_as_pydicts="strict")
    for field in rows.schema:
        column = rows.column(field.name)
        if pa.types.is_signed_integer(field.type) and column.null_count:
            exact = column.to_pandas(integer_object_nulls=True)
            frame[field.name] = exact.astype(f"Int{field.type.bit_width}")
        elif pa.types.is_nested(field.type) and field.name != "_kafka":
            values = [_plain(value, field.type) for value in column.to_pylist()]
            frame[field.name] = pd.Series(values, index=frame.index, dtype=object)
    return frame


def _differs(kind: pa.DataType, zone: dt.tzinfo | None = None) -> bool:
    """Whether Arrow's Python values of this type need conversion."""
    if pa.types.is_map(kind) or pa.types.is_float32(kind):
        return True
    if zone is not None and pa.types.is_timestamp(kind) and kind.tz is not None:
        return True
    return any(_differs(kind.field(i).type, zone) for i in range(kind.num_fields))


def _plain(value: Any, kind: pa.DataType, zone: dt.tzinfo | None = None) -> Any:
    """Convert one of Arrow's Python values: maps to dicts, FLOATs to few digits, and times to the zone."""
    if value is None or not _differs(kind, zone):
        return value
    if pa.types.is_timestamp(kind):
        return _in_zone(value, zone)
    if pa.types.is_float32(kind):
        return _shortest(value)
    if pa.types.is_map(kind):
        return {_key(k, kind.key_type): _plain(v, kind.item_type, zone) for k, v in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type, zone) for field in kind}
    return [_plain(each, kind.value_type, zone) for each in value]


def _in_zone(value: dt.datetime, zone: dt.tzinfo | None) -> dt.datetime:
    try:
        return value.astimezone(zone)
    except OverflowError:
        return value  # outside the range of datetime


def _shortest(value: float) -> float:
    """The shortest double that equals a FLOAT when rounded to it: 0.1 instead of 0.10000000149011612."""
    for digits in range(2, 9):
        short = float(f"{value:.{digits}g}")
        if _FLOAT.unpack(_FLOAT.pack(short))[0] == value:
            return short
    return value if value != value else float(f"{value:.9g}")


def _key(key: Any, kind: pa.DataType) -> Any:
    # Spark supports structs and arrays as map keys; Python's dict does not.
    return key if not pa.types.is_nested(kind) else str(key)


# Results, record by record


def listed(result: Any) -> list[dict[str, Any]]:
    """The rows that a function returned for one record, as a list."""
    if result is None:
        return []
    results = result if isinstance(result, list | tuple) else [result]
    for each in results:
        if not isinstance(each, dict):
            msg = f"the function returned {type(each).__name__}; return a dict, a list of dicts, or None"
            raise ResultError(msg)
    return list(results)


def check_names(returned: Iterable[Any], declared: Collection[str]) -> None:
    """Refuse columns that the schema does not declare. ``_kafka`` is allowed and ignored."""
    unknown = [str(name) for name in returned if name not in declared and name != "_kafka"]
    if unknown:
        msg = f"the function returned {', '.join(map(repr, sorted(unknown)))}, which the schema does not declare"
        raise ResultError(msg)


def check_required(result: dict[str, Any], required: Sequence[str]) -> None:
    """Refuse a row with a null or missing column that is declared NOT NULL."""
    for name in required:
        if result.get(name) is None:
            raise _missing(name)


def rows_as_columns(rows: list[dict[str, Any]], columns: pa.Schema) -> pa.RecordBatch | None:
    """Convert the rows to a batch; None if one of them does not fit."""
    try:
        made = pa.RecordBatch.from_pylist(rows, schema=columns)
        for field in columns:
            check_exact([row.get(field.name) for row in rows], field.type, field.name)
    except MISFITS:
        return None
    # Arrow does not check nulls, and Spark crashes on a null that its schema excludes.
    holes = [missing_in(made.column(field.name), field.name) for field in columns]
    return made if not any(holes) else None


def misfit(row: dict[str, Any], columns: pa.Schema) -> ResultError | None:
    """Why a row does not fit; None if it fits."""
    for field in columns:
        try:
            array = exact_array([row.get(field.name)], field.type, field.name)
        except MisfitError as error:
            return _result_error(error)
        hole = missing_in(array, field.name)
        if hole is not None:
            return _missing(hole)
    return None


# Results, batch by batch


def frame_as_table(result: Any, columns: pa.Schema) -> pa.Table:
    """Convert a pandas.DataFrame to Arrow, in the order of the function's input rows."""
    import pandas as pd

    if not isinstance(result, pd.DataFrame):
        msg = f"the function returned {type(result).__name__}; return a pandas.DataFrame"
        raise ResultError(msg)
    check_names(result.columns, columns.names)
    # If the function sorted its rows, the index still has their input positions, by which _kafka is joined.
    given = pd.RangeIndex(len(result))
    if not result.index.equals(given) and result.index.sort_values().equals(given):
        result = result.sort_index()
    arrays = {field.name: _series(result[field.name], field) for field in columns if field.name in result.columns}
    return pa.table(arrays) if arrays else pa.table({"": pa.nulls(len(result))})


def as_table(result: Any, columns: pa.Schema) -> pa.Table:
    """Convert a pyarrow.RecordBatch or Table to a Table."""
    if not isinstance(result, pa.RecordBatch | pa.Table):
        msg = f"the function returned {type(result).__name__}; return a pyarrow.RecordBatch"
        raise ResultError(msg)
    check_names(result.schema.names, columns.names)
    return pa.table(result) if isinstance(result, pa.RecordBatch) else result


def table_as_columns(table: pa.Table, columns: pa.Schema, required: Sequence[str]) -> pa.RecordBatch:
    """Convert a table to the declared types. Declared columns that it lacks are null."""
    arrays = []
    for field in columns:
        column = table.column(field.name).combine_chunks() if field.name in table.column_names else None
        array = pa.nulls(table.num_rows, field.type) if column is None else _cast(column, field)
        if field.name in required and array.null_count:
            raise _missing(field.name)
        hole = missing_in(array, field.name)
        if hole is not None:
            raise _missing(hole)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _series(series: Any, field: pa.Field) -> pa.Array:
    try:
        if series.dtype == object:
            # Arrow would infer the type, and infer a struct from a dict where a map is declared.
            return exact_array(series, field.type, field.name, from_pandas=True)
        array = pa.array(series, from_pandas=True)
    except MISFITS as error:
        msg = f"the function returned {field.name!r} as {series.dtype}, but it is declared as {field.type}: {error}"
        raise ResultError(msg) from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return exact_cast(array, field.type, field.name)
    except MisfitError as error:
        raise _result_error(error) from None


# Shared


def _result_error(error: MisfitError) -> ResultError:
    return ResultError(f"the function returned {error}")


def _missing(path: str) -> ResultError:
    return ResultError(f"the function returned null for {path!r}, which is declared NOT NULL")


def missing_in(array: pa.Array, path: str) -> str | None:
    """Path of the first null inside a column that its type does not allow; None if there is none."""
    kind = array.type
    if pa.types.is_struct(kind):
        present = array.filter(array.is_valid()) if array.null_count else array
        parts = [(f"{path}.{kind.field(i).name}", kind.field(i), part) for i, part in enumerate(present.flatten())]
    elif pa.types.is_map(kind):
        # If the array is a slice, `items` still has the items of the whole array.
        first, end = (array.offsets[i].as_py() for i in (0, len(array)))
        parts = [(f"{path}[]", kind.item_field, array.items.slice(first, end - first))]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = [(f"{path}[]", kind.value_field, array.flatten())]
    else:
        return None
    for inner, field, part in parts:
        if not field.nullable and part.null_count:
            return inner
        hole = missing_in(part, inner)
        if hole is not None:
            return hole
    return None


def with_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column from Spark to the type that Spark expects back. Only the names of time zones differ.

    Arrow's own cast refuses a null struct whose fields are NOT NULL, and a row that is not from Kafka has a null
    ``_kafka``.
    """
    if array.type == kind or not pa.types.is_struct(kind):
        return array if array.type == kind else array.cast(kind)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    parts = [with_type(part, field.type) for part, field in zip(array.flatten(), fields, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
