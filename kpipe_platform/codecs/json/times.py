"""Check whether Spark can parse a text as a date or a timestamp.

Source: Spark 4.2 ``SparkDateTimeUtils.stringToDate`` and ``parseTimestampString``, and the fallback for
old texts in ``JacksonParser``; compared with Spark itself in the tests.
"""

from __future__ import annotations

import re
import zoneinfo
from calendar import isleap
from functools import lru_cache

# Bytes that Spark trims at both ends: white space and control characters, all of them ASCII.
_TRIMMED = "".join(map(chr, range(0x21))) + "\x7f"

_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_DAYS = re.compile(r"[+-]?\d{1,19}")

# Hour, minute and second. A zone may only follow the seconds.
_TIME = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.[0-9]*)?([^0-9.].*)?)?)?"
_TIMESTAMP = re.compile(rf"([+-]?)([0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:[ T]{_TIME})?)?)?", re.DOTALL)
_TIME_ONLY = re.compile(rf"(?:T|(?=[0-9]{{1,2}}:)){_TIME}", re.DOTALL)

_OFFSET = re.compile(r"[+-](?:(\d)|(\d\d)(?::?(\d\d)(?::?(\d\d))?)?)", re.ASCII)
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9/._~+-]+", re.ASCII)
# The three-letter names that Java still supports.
_SHORT_ZONES = re.compile("A[CEGR]T|AST|B[ES]T|C[ANST]T|CTT|E[CS]T|HST|I[ES]T|JST|MIT|MST|N[ES]T|P[LNRS]T|SST|VST")
_DAYS_OF_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# First and last day that Spark can hold: 32 bits of days, and 64 bits of microseconds.
_DATE_LIMITS = ((-5_877_641, 6, 23), (5_881_580, 7, 11))
_TIMESTAMP_LIMITS = ((-290_308, 12, 22), (294_247, 1, 10))


def is_date(text: str) -> bool:
    """Return whether Spark reads the text as a DATE: ``yyyy[-M[-d]]``, with any time, or days since 1970."""
    if _is_date(text) or _is_date(text.replace("GMT", "")):
        return True
    return _DAYS.fullmatch(text) is not None and -(2**31) <= int(text) < 2**31


def is_timestamp(text: str) -> bool:
    """Return whether Spark reads the text as a TIMESTAMP: a date, a time of today, or both, with or without a zone."""
    return _is_timestamp(text) or ("GMT" in text and _is_timestamp(text.replace("GMT", "")))


def is_timestamp_ntz(text: str) -> bool:
    """Return whether Spark reads the text as a TIMESTAMP_NTZ: a date with or without a time, and without a zone."""
    match = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    return match is not None and match.group(8) is None and _is_moment(match)


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text.strip(_TRIMMED))
    return match is not None and _is_day(match, _DATE_LIMITS)


def _is_timestamp(text: str) -> bool:
    match = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    if match is not None:
        return _is_moment(match) and (match.group(8) is None or is_zone(match.group(8)))
    match = _TIME_ONLY.fullmatch(text.rstrip(_TRIMMED) if text.startswith("T") else text.strip(_TRIMMED))
    if match is None or not _is_time(*match.group(1, 2, 3)):
        return False
    return match.group(4) is None or is_zone(match.group(4))


def _is_moment(match: re.Match[str]) -> bool:
    return _is_day(match, _TIMESTAMP_LIMITS) and _is_time(*match.group(5, 6, 7))


def _is_day(match: re.Match[str], limits: tuple[tuple[int, int, int], tuple[int, int, int]]) -> bool:
    sign, year_text, month_text, day_text = match.group(1, 2, 3, 4)
    year = -int(year_text) if sign == "-" else int(year_text)
    month, day = int(month_text or 1), int(day_text or 1)
    if not 1 <= month <= 12:
        return False
    days = _DAYS_OF_MONTH[month - 1] + (1 if month == 2 and isleap(year) else 0)
    return 1 <= day <= days and limits[0] <= (year, month, day) <= limits[1]


def _is_time(hour: str | None, minute: str | None, second: str | None) -> bool:
    return int(hour or 0) < 24 and int(minute or 0) < 60 and int(second or 0) < 60


def is_zone(text: str) -> bool:
    """Return whether Java's ``ZoneId.of`` accepts the zone: ``Z``, ``+01:00``, ``UTC+1``, ``Europe/Berlin``."""
    zone = text.strip(_TRIMMED)
    # Spark also accepts +h:mm and +hh:m, which Java does not.
    zone = re.sub(r"([+-])(\d):", r"\g<1>0\2:", zone, count=1, flags=re.ASCII)
    zone = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", zone, count=1, flags=re.ASCII)
    if zone == "Z" or _SHORT_ZONES.fullmatch(zone) or _is_offset(zone):
        return True
    for prefix in ("UTC", "GMT", "UT"):
        if zone.startswith(prefix):
            rest = zone[len(prefix) :]
            if not rest or (rest[0] in "+-" and _is_offset(rest)):
                return True
    if _REGION.fullmatch(zone) is None:
        return False
    regions = _regions()
    return not regions or zone in regions


def _is_offset(text: str) -> bool:
    match = _OFFSET.fullmatch(text)
    if match is None:
        return False
    hours, minutes, seconds = (
        int(match.group(1) or match.group(2)),
        int(match.group(3) or 0),
        int(match.group(4) or 0),
    )
    return minutes < 60 and seconds < 60 and hours * 3600 + minutes * 60 + seconds <= 18 * 3600


@lru_cache(maxsize=1)
def _regions() -> frozenset[str]:
    # Empty if the machine has no time zone data. Then every name of the right form is accepted.
    return frozenset(zoneinfo.available_timezones())
