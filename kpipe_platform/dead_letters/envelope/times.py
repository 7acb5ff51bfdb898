"""Convert milliseconds since the epoch to ISO 8601 in UTC and back."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MS = dt.timedelta(milliseconds=1)


def to_iso(ms: int | None) -> str | None:
    """Return the time as text, such as ``2013-01-01T05:17:00.000Z``.

    The result is None for None, and for a time outside the years 1 to 9999. Such times occur, because producers may
    set any 64-bit number as a timestamp.
    """
    if ms is None:
        return None
    second, part = divmod(ms, 1000)
    text = _second(second)
    return None if text is None else f"{text}.{part:03d}Z"


# The dead letters of a slice share few distinct seconds, and formatting is the slowest part of the conversion.
@lru_cache(maxsize=1024)
def _second(second: int) -> str | None:
    try:
        return (_EPOCH + dt.timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    except OverflowError:
        return None


def from_iso(text: str | None) -> int | None:
    """Parse a time in the form of `to_iso`. Return milliseconds since the epoch; None for None.

    Raises:
        ValueError: The text is not an ISO 8601 time.
    """
    if text is None:
        return None
    # Python 3.10 cannot parse the suffix Z.
    return (dt.datetime.fromisoformat(text.replace("Z", "+00:00")) - _EPOCH) // _MS


def required_from_iso(text: str | None) -> int:
    """Parse a required time, as `from_iso` does.

    Raises:
        ValueError: The text is None or not an ISO 8601 time.
    """
    ms = from_iso(text)
    if ms is None:
        msg = "a required time is null"
        raise ValueError(msg)
    return ms
