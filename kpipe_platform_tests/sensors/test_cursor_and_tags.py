from __future__ import annotations

import json
import re

import pytest

from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange
from kpipe_platform.sensors.tick.cursor import Cursor, Seen
from kpipe_platform.sensors.tick.in_flight import FailedRun, failures_at
from kpipe_platform.sensors.tick.tags import RANGE_KEY, RANGES, RequestedOffsets, range_key, tags_of_ranges

NOW = 10_000.0
PARTITION = ("orders", 0)


def test_a_cursor_comes_back() -> None:
    cursor = Cursor({0: Seen(5, 100), -1: Seen(7, 90)}, None, {3: "LostRangeError"}, 4, {"partitions": 2})
    assert Cursor.from_text(cursor.to_text()) == cursor


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "3",
        "[]",
        '{"kpipe":2}',
        '{"kpipe":1}',
        '{"kpipe":1,"seen":[[1,2]],"seen_rest_s":null,"reported":[],"after":null,"summary":{}}',
        '{"kpipe":1,"seen":[[1,2,NaN]],"seen_rest_s":null,"reported":[],"after":null,"summary":{}}',
        '{"kpipe":1,"seen":[],"seen_rest_s":Infinity,"reported":[],"after":null,"summary":{}}',
        '{"kpipe":1,"seen":[],"seen_rest_s":null,"reported":[],"after":"x","summary":{}}',
    ],
)
def test_what_is_no_cursor_is_an_empty_one(text: str | None) -> None:
    assert Cursor.from_text(text) == Cursor()


def test_a_cursor_of_many_partitions_is_bounded_and_asks_too_early_rather_than_never() -> None:
    many = Cursor(
        {n: Seen(10**12 + n, 1_000 + n) for n in range(100_000)},
        None,
        {n: "exhausted@" + "9" * 13 for n in range(9_999)},
    )
    text = many.to_text()
    assert len(text.encode()) < 40_000
    back = Cursor.from_text(text)
    assert back.is_full
    assert back.first_seen_s(3, 10**12 + 3, 10**9) == 1_003
    # For partition 90,000 there was no room: it waits since the oldest of those.
    assert back.first_seen_s(90_000, 10**12, 10**9) == 1_500


@pytest.mark.parametrize(
    ("start", "now_s", "first_s"), [(5, 200, 100), (6, 200, 200), (5, 50, 50)], ids=["same", "moved", "clock set back"]
)
def test_when_an_offset_was_first_seen(start: int, now_s: float, first_s: float) -> None:
    assert Cursor({0: Seen(5, 100)}).first_seen_s(0, start, now_s) == first_s


def test_range_keys_are_unique_and_short() -> None:
    one = range_key("g", "0", [OffsetRange("orders", 0, 5, 9)])
    assert one == "g:orders/0[5-9]"
    assert range_key("g", "0", [OffsetRange("a", 0, 1, 2), OffsetRange("b", 0, 3, 4)]) == "g:a/0[1-2],b/0[3-4]"
    many = [OffsetRange("orders", n, n, n + 5) for n in range(1_000)]
    other = [*many[:-1], OffsetRange("orders", 999, 999, 1_005)]
    keys = {range_key(group, "0-999", ranges) for group in ("g", "h") for ranges in (many, other)}
    assert len(keys) == 4
    assert all(re.fullmatch(r"[gh]:orders/0-999\[[0-9a-f]{32}\]", key) for key in keys)


def planned(topic: str, partition: int, start: int, end: int, lost_from: int | None = None) -> PlannedRange:
    lost = None if lost_from is None else OffsetRange(topic, partition, lost_from, start)
    committed = start if lost_from is None else lost_from
    return PlannedRange(OffsetRange(topic, partition, start, end), "id", start, end, committed, lost)


def test_ranges_come_back_from_the_tags() -> None:
    tags = tags_of_ranges([planned("b", 1, 3, 4), planned("a", 12, 7, 9, lost_from=2)])
    assert {name: json.loads(text) for name, text in tags.items()} == {
        RANGES: {"a": {"12": [7, 9, 2]}, "b": {"1": [3, 4]}}
    }
    # What counts failures is where the group stood, not where the log began.
    assert RequestedOffsets.of(tags).committed == {("b", 1): 3, ("a", 12): 2}


@pytest.mark.parametrize("topics", [1, 30])
@pytest.mark.parametrize("partitions", [0, 1, 600, 20_000])
def test_tags_of_any_number_of_partitions_can_be_indexed(topics: int, partitions: int) -> None:
    """PostgreSQL refuses a run whose tag has more than some 2,600 bytes, key included."""
    names = [f"{n:03}".ljust(249, "x") for n in range(topics)]
    offset = 2**62
    ranges = [planned(names[n % topics], n, offset, offset + n, offset - 1) for n in range(partitions)]
    tags = {**tags_of_ranges(ranges), RANGE_KEY: range_key("g" * 255, "all", [each.range for each in ranges])}
    assert max(len(name.encode()) + len(text.encode()) for name, text in tags.items()) < 2_600
    assert RequestedOffsets.of(tags).committed == {(p.range.topic, p.range.partition): offset - 1 for p in ranges}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 3}', '{"a": {"x": [1, 2]}}', '{"a": {"1": 2}}'])
def test_tags_of_another_kind_name_nothing(text: str) -> None:
    assert RequestedOffsets.of({RANGES: text}).committed == {}
    assert RequestedOffsets.of({}).committed == {}


def failed(ended_s: float, committed: int = 5) -> FailedRun:
    return FailedRun(RequestedOffsets({PARTITION: committed, ("orders", 1): 0}), ended_s)


@pytest.mark.parametrize(
    ("runs", "success_s", "count", "last_s"),
    [
        ([], None, 0, 0),
        ([failed(10)], None, 1, 10),
        ([failed(30), failed(20), failed(10)], None, 3, 30),
        # The storage lists runs by when they were made, which need not be when they ended.
        ([failed(10), failed(30)], None, 2, 30),
        ([failed(10, committed=4)], None, 0, 0),
        ([failed(30), failed(10)], 20, 1, 30),
        ([failed(30), failed(10)], 40, 0, 0),
        ([FailedRun(RequestedOffsets({}), 10)], None, 0, 0),
    ],
)
def test_failures_at_the_present_offset(
    runs: list[FailedRun], success_s: float | None, count: int, last_s: float
) -> None:
    found = failures_at(runs, {PARTITION: 5}, lambda: success_s)
    assert (found.count, found.last_s) == (count, last_s)


def test_failures_of_a_new_group_count_wherever_the_log_began() -> None:
    runs = [failed(30, committed=9), failed(20, committed=7), failed(10, committed=5)]
    assert failures_at(runs, {PARTITION: None}, lambda: None).count == 3
    assert failures_at(runs, {("orders", 2): None}, lambda: None).count == 0
