"""A sample of what Spark reads as dates and times; test_against_spark asks Spark itself."""

from __future__ import annotations

import pytest

from kpipe_platform.codecs.json import times
from kpipe_platform.codecs.json.times import is_date, is_timestamp, is_timestamp_ntz, is_zone


@pytest.mark.parametrize(
    ("text", "date", "timestamp", "ntz"),
    [
        ("2020-01-05", True, True, True),
        (" 2020-1-5 ", True, True, True),
        ("2020-01", True, True, True),
        ("2020", True, True, True),
        ("+2020-01-05", True, True, True),
        ("-0001-01-05", True, True, True),
        ("0000-02-29", True, True, True),
        ("1900-02-29", False, False, False),
        ("2020-13-01", False, False, False),
        ("2020-01-05T10:00:00.123456789", True, True, True),
        ("2020-01-05 1:2:3", True, True, True),
        ("2020-01-05T10", True, True, True),
        ("2020-01-05T10:00:00Z", True, True, False),
        ("2020-01-05T10:00:00 +1:00", True, True, False),
        ("2020-01-05T10:00:00.5GMT-3", True, True, False),
        ("2020-01-05T10:00Z", True, False, False),
        ("2020-01-05T24:00:00", True, False, False),
        ("2020-01-05T10:00:60", True, False, False),
        ("2020-01-05 or so", True, False, False),
        ("2020-01-05t10:00:00", False, False, False),
        ("10:00", False, True, False),
        ("T10:00:00Z", False, True, False),
        ("+10:00", False, False, False),
        ("17000", True, True, True),
        ("12", True, False, False),
        ("-5", True, False, False),
        ("2147483648", False, False, False),
        ("5881580-07-11", True, False, False),
        ("5881580-07-12", False, False, False),
        ("294247-01-01", True, True, True),
        ("294248-01-01", True, False, False),
        ("01/05/2020", False, False, False),
        ("now", False, False, False),
        ("", False, False, False),
    ],
)
def test_dates_and_times(text: str, date: bool, timestamp: bool, ntz: bool) -> None:
    assert (is_date(text), is_timestamp(text), is_timestamp_ntz(text)) == (date, timestamp, ntz)


@pytest.mark.parametrize(
    "zone", ["Z", "+1", "+01", "+0130", "+01:30", "-01:30:15", "+1:30", "+01:3", "+18:00", "UTC", "UT", "GMT+1",
             "UTC-01:30", "Europe/Berlin", "PST", " UTC "]
)  # fmt: skip
def test_zones(zone: str) -> None:
    assert is_zone(zone)


@pytest.mark.parametrize("zone", ["", "z", "+", "+19", "+18:01", "+01:60", "+001", "UTC+19", "XYZ", "Mars/Base", "."])
def test_what_is_no_zone(zone: str) -> None:
    assert not is_zone(zone)


def test_any_region_goes_where_the_machine_has_no_zone_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "_regions", frozenset)
    assert is_zone("Mars/Base")
    assert not is_zone("+19")
