"""Milliseconds since the epoch to ISO 8601 in UTC and back."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MS = dt.timedelta(milliseconds=1)


def to_iso(ms: int | None) -> str | None:
    """``2013-01-01T05:17:00.000Z``; None for None, and for a time outside the years 1 to 9999.

    Producers may set any 64 bits as a timestamp, so such times do occur.
    """
    if ms is None:
        return None
    second, part = divmod(ms, 1000)
    text = _second(second)
    return None if text is None else f"{text}.{part:03d}Z"


# A slice has many dead letters and few seconds; making the text takes longer than the rest of the time's work.
@lru_cache(maxsize=1024)
def _second(second: int) -> str | None:
    try:
        return (_EPOCH + dt.timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    except OverflowError:
        return None


def from_iso(text: str | None) -> int | None:
    """The milliseconds of what `to_iso` wrote.

    Raises:
        ValueError: The text is no such time.
    """
    if text is None:
        return None
    # Python 3.10 reads no Z.
    return (dt.datetime.fromisoformat(text.replace("Z", "+00:00")) - _EPOCH) // _MS


def required_from_iso(text: str | None) -> int:
    """As `from_iso`, for a time that must be there.

    Raises:
        ValueError: The text is None or no such time.
    """
    ms = from_iso(text)
    if ms is None:
        msg = "a time is null"
        raise ValueError(msg)
    return ms
