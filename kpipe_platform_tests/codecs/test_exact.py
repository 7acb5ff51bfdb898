"""A declared type holds a Python value or an Arrow array unchanged, or it is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe_platform.codecs.exact import MisfitError, exact_array, exact_cast
from kpipe_platform.spark.stage.record_results import (
    ResultError,
    frame_as_table,
    misfit,
    rows_as_columns,
    table_as_columns,
)

AWARE = pa.timestamp("us", "UTC")
NAIVE = pa.timestamp("us")
UTC_TIME = dt.datetime(2026, 1, 5, 10, 30, tzinfo=dt.timezone.utc)
WALL_TIME = UTC_TIME.replace(tzinfo=None)
MS = 1_767_225_600_000

CHANGED: list[tuple[Any, pa.DataType]] = [
    (1.5, pa.int32()),
    (True, pa.int32()),
    (True, pa.float64()),
    (1, pa.bool_()),
    (MS, AWARE),
    (MS, NAIVE),
    (dt.date(2026, 1, 5), AWARE),
    (UTC_TIME, NAIVE),
    (UTC_TIME, pa.date32()),
    (WALL_TIME, pa.date32()),
    (20_000, pa.date32()),
    (1e39, pa.float32()),
    (2**53 + 1, pa.float64()),
    (Decimal("1.239"), pa.decimal128(10, 2)),
    (1.25, pa.decimal128(10, 2)),
    (b"x", pa.string()),
    (5, pa.string()),
    ("eA==", pa.binary()),
]
KEPT: list[tuple[Any, pa.DataType]] = [
    (7, pa.int32()),
    (7.0, pa.int64()),
    (2**40, pa.float64()),
    (0.1, pa.float32()),
    (float("inf"), pa.float32()),
    (Decimal("1.20"), pa.decimal128(10, 2)),
    (3, pa.decimal128(10, 2)),
    (UTC_TIME, AWARE),
    (WALL_TIME, NAIVE),
    (dt.date(2026, 1, 5), pa.date32()),
    ("text", pa.string()),
    (b"x", pa.binary()),
    (True, pa.bool_()),
    (None, pa.int32()),
]
PLACES: dict[str, Any] = {
    "alone": lambda value, kind: (value, kind),
    "in a struct": lambda value, kind: ({"a": value}, pa.struct([("a", kind)])),
    "in a list": lambda value, kind: ([None, value], pa.list_(kind)),
    "in a map": lambda value, kind: ({"k": value}, pa.map_(pa.string(), kind)),
    "deep": lambda value, kind: (
        [{"m": {"k": [value]}}],
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(kind)))])),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_value_that_would_change_is_refused_in_every_place(place: str) -> None:
    for value, kind in CHANGED:
        one, whole = PLACES[place](value, kind)
        columns = pa.schema([("x", whole)])
        assert rows_as_columns([{"x": None}, {"x": one}], columns) is None, (value, kind)
        assert isinstance(misfit({"x": one}, columns), ResultError)
        with pytest.raises(ResultError):
            frame_as_table(pd.DataFrame({"x": pd.Series([None, one], dtype=object)}), columns)
    for value, kind in KEPT:
        one, whole = PLACES[place](value, kind)
        columns = pa.schema([("x", whole)])
        assert misfit({"x": one}, columns) is None, (value, kind)
        made = rows_as_columns([{"x": one}], columns)
        frame = frame_as_table(pd.DataFrame({"x": pd.Series([one], dtype=object)}), columns)
        assert made is not None
        assert frame.column("x").to_pylist() == made.column("x").to_pylist()


def test_an_undeclared_field_is_refused_at_any_depth() -> None:
    kind = pa.struct([("a", pa.int32())])
    for value, whole in (
        ({"a": 1, "b": 2}, kind),
        ([{"b": 2}], pa.list_(kind)),
        ({"k": {"b": 2}}, pa.map_("string", kind)),
    ):
        with pytest.raises(MisfitError, match="with a field 'b', which is not declared"):
            exact_array([value], whole, "x")


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (pa.array([MS]), AWARE),
        (pa.array([20_000], pa.int32()), pa.date32()),
        (pa.array([UTC_TIME], AWARE), pa.date32()),
        (pa.array([UTC_TIME], AWARE), NAIVE),
        (pa.array([dt.date(2026, 1, 5)]), AWARE),
        (pa.array([1.5]), pa.int32()),
        (pa.array([1e39]), pa.float32()),
        (pa.array([1.239]), pa.decimal128(10, 2)),
        (pa.array([Decimal("0.12345678901234567")]), pa.float64()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([True]), pa.int32()),
        (pa.array([1]), pa.bool_()),
        (pa.array([1]), pa.string()),
        (pa.array(["1"]), pa.int32()),
        (pa.array(["x"]), pa.binary()),
        (pa.array([b"x"]), pa.string()),
    ],
)
def test_an_array_that_would_change_is_refused_in_every_place(found: pa.Array, kind: pa.DataType) -> None:
    one = pa.array([0, 1], pa.int32())
    inside = [
        (found, kind),
        (pa.StructArray.from_arrays([found], ["a"]), pa.struct([("a", kind)])),
        (pa.ListArray.from_arrays(one, found), pa.list_(kind)),
        (pa.MapArray.from_arrays(one, pa.array(["k"]), found), pa.map_(pa.string(), kind)),
    ]
    for array, whole in inside:
        field = pa.field("x", whole)
        with pytest.raises(ResultError):
            table_as_columns(pa.table({"x": array}), pa.schema([field]), ())


@pytest.mark.parametrize(
    ("found", "kind", "expected"),
    [
        (pa.array([1.0, None]), pa.int32(), [1, None]),
        (pa.array([7], pa.int8()), pa.decimal128(10, 2), [Decimal("7.00")]),
        (pa.array([1.25]), pa.decimal128(10, 2), [Decimal("1.25")]),
        (pa.array([0.1]), pa.float32(), [pytest.approx(0.1)]),
        (pa.array(["a", None]).dictionary_encode(), pa.string(), ["a", None]),
        (pa.array([None]), pa.date32(), [None]),
        (
            pa.array([1_000_000_001], pa.timestamp("ns", "UTC")),
            AWARE,
            [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.timezone.utc)],
        ),
        (pa.array([WALL_TIME], NAIVE), AWARE, [UTC_TIME]),
        (pa.array([{"b": 1}]), pa.struct([("a", pa.int32()), ("b", pa.int32())]), [{"a": None, "b": 1}]),
    ],
)
def test_an_array_is_cast_where_nothing_changes(found: pa.Array, kind: pa.DataType, expected: list[Any]) -> None:
    assert exact_cast(found, kind, "x").to_pylist() == expected


_TYPES = [kind for _, kind in KEPT]
_VALUES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.timezone.utc)),
    st.decimals(allow_nan=False, allow_infinity=False),
)


@given(_VALUES, st.sampled_from(_TYPES))
def test_what_is_taken_reads_back_as_it_was(value: Any, kind: pa.DataType) -> None:
    try:
        [back] = exact_array([value], kind, "x", zoned=True).to_pylist()
    except MisfitError:
        return
    if isinstance(value, float):
        close = pytest.approx(value, rel=1e-6, abs=1e-37, nan_ok=True)
        assert back == (close if kind == pa.float32() else pytest.approx(value, rel=0, abs=0, nan_ok=True))
    else:
        assert back == value
        assert isinstance(value, bool) == isinstance(back, bool)
