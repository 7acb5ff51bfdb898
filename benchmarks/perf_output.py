"""Parse the output of Kafka's performance tools."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kpipe_platform.jvm.jars import KAFKA_VERSION

_QUOTED_CHARACTERS = 1_000

# After a line every five seconds, and with warm-up a second one for the records after it.
_TOTAL = re.compile(r"^(\d+)( steady state)? records sent, (\d+\.\d+) records/sec \(.* ms 99\.9th\.$", re.MULTILINE)
_HEADER = "start.time, end.time, "


class ToolError(RuntimeError):
    """A tool failed, or its output does not have the format of this version."""

    def __init__(self, what: str, text: str) -> None:
        quoted = text.strip()
        if len(quoted) > 2 * _QUOTED_CHARACTERS:
            # One of the tools explains its options before it says what it did not like about them, the other after.
            quoted = f"{quoted[:_QUOTED_CHARACTERS]}\n...\n{quoted[-_QUOTED_CHARACTERS:]}"
        super().__init__(f"{what}, Kafka {KAFKA_VERSION}. Its output:\n{quoted or 'nothing'}")


@dataclass(frozen=True)
class Sent:
    """Output of the producer tool.

    Args:
        records: Records that the brokers acknowledged, those of the warm-up too.
        measured: Those after the warm-up.
        seconds: From the first of these until all is committed.
    """

    records: int
    measured: int
    seconds: float


@dataclass(frozen=True)
class Fetched:
    """Output of the consumer tool.

    Args:
        records: Records that it read.
        mib: Their keys and values, to four decimals.
        seconds: From when it had its partitions to the last record.
    """

    records: int
    mib: float
    seconds: float


def parse_sent(text: str) -> Sent:
    """Read the two totals that ``ProducerPerformance --warmup-records`` ends with.

    Raises:
        ToolError: They are not there, or name no rate: no record was acknowledged.
    """
    totals = {bool(match[2]): (int(match[1]), float(match[3])) for match in _TOTAL.finditer(text)}
    if set(totals) != {False, True} or not totals[True][1]:
        what = "ProducerPerformance printed no totals of all records and of those after the warm-up"
        raise ToolError(what, text)
    measured, rate = totals[True]
    return Sent(totals[False][0], measured, measured / rate)


def parse_fetched(text: str) -> Fetched:
    """Read the table of one row that ``ConsumerPerformance`` ends with.

    Raises:
        ToolError: It is not there, lacks a column, or tells no time.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(_HEADER)), len(lines))
    names = lines[start].split(", ") if start < len(lines) else []
    rows = [values for line in lines[start + 1 :] if len(values := line.split(", ")) == len(names)]
    try:
        # Between the two, it may warn that fewer records arrived than requested.
        row = dict(zip(names, rows[0], strict=True))
        records, milliseconds = int(row["data.consumed.in.nMsg"]), int(row["fetch.time.ms"])
        fetched = Fetched(records, float(row["data.consumed.in.MB"]), milliseconds / 1_000)
    except (IndexError, KeyError, ValueError) as error:
        what = "ConsumerPerformance printed no table of records, MB and milliseconds of fetching"
        raise ToolError(what, text) from error
    if fetched.seconds <= 0:
        what = f"ConsumerPerformance printed a fetch time of {milliseconds} ms"
        raise ToolError(what, text)
    return fetched
