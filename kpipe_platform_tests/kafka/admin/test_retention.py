"""Time to loss, computed: no broker."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kpipe_platform.kafka.admin.retention import TopicRetention, retention_from_config, time_to_loss
from kpipe_platform.kafka.model.offsets import Watermarks
from kpipe_platform.kafka.read.samples import OldestRecord

NOW = 1_000_000_000
AGED = OldestRecord(10, NOW - 100_000, "create_time", 1000.0)
"""The record at offset 10, 100 s old."""


def loss(retention: TopicRetention, **changes: Any) -> Any:
    facts: dict[str, Any] = {"offset": 10, "watermarks": Watermarks(0, 110), "oldest": AGED, "now_ms": NOW}
    return time_to_loss(retention, **{**facts, **changes})


@pytest.mark.parametrize(
    ("retention", "changes", "seconds"),
    [
        (TopicRetention(retention_ms=300_000), {}, 200.0),
        (TopicRetention(retention_ms=50_000), {}, 0.0),
        (TopicRetention(retention_ms=300_000), {"offset": 110}, math.inf),
        (TopicRetention(retention_ms=300_000), {"oldest": None}, math.inf),
        (TopicRetention(retention_ms=300_000, deletes=False), {}, math.inf),
        (TopicRetention(), {}, math.inf),
        # 100 offsets of 1,000 bytes wait, one came each second: 100,000 bytes more take 100 s.
        (TopicRetention(retention_bytes=200_000), {}, 100.0),
        (TopicRetention(retention_bytes=200_000), {"recent_per_s": 10.0}, 10.0),
        (TopicRetention(retention_bytes=200_000), {"recent_per_s": 0.0}, 100.0),
        (TopicRetention(retention_bytes=100_000), {}, 0.0),
        (TopicRetention(retention_ms=150_000, retention_bytes=200_000), {}, 50.0),
        (TopicRetention(retention_ms=900_000, retention_bytes=200_000), {}, 100.0),
        # A full log of 110 offsets takes at most the limit and a segment: compressed, an offset has 100 bytes.
        (TopicRetention(retention_bytes=10_500, segment_bytes=500), {}, 5.0),
    ],
)
def test_seconds(retention: TopicRetention, changes: dict[str, Any], seconds: float) -> None:
    assert loss(retention, **changes).seconds == pytest.approx(seconds)


def test_lost_already() -> None:
    found = loss(TopicRetention(), watermarks=Watermarks(50, 110))
    assert (found.seconds, found.lost) == (0.0, 40)
    assert found.why == "offsets [10, 50) were deleted before they were read"


UNDATED = OldestRecord(10, None, None, 1000.0)


def test_what_is_not_known_is_said() -> None:
    found = loss(TopicRetention(retention_ms=300_000), oldest=UNDATED)
    assert (found.seconds, found.why) == (None, "the record at offset 10 has no timestamp")
    assert "unknown growth rate of the log" in loss(TopicRetention(retention_bytes=200_000), oldest=UNDATED).why
    # The rate since the last observation serves where no timestamp does; the bound by time stays unknown.
    by_rate = loss(TopicRetention(retention_bytes=200_000), oldest=UNDATED, recent_per_s=2.0)
    assert by_rate.seconds == pytest.approx(50.0)
    both = TopicRetention(retention_ms=300_000, retention_bytes=200_000)
    assert loss(both, oldest=UNDATED, recent_per_s=2.0).seconds is None
    # Sooner than now is nothing.
    full = TopicRetention(retention_ms=300_000, retention_bytes=1_000)
    assert loss(full, oldest=UNDATED).seconds == 0.0


def test_shown() -> None:
    shown = [loss(r).shown() for r in (TopicRetention(), TopicRetention(retention_ms=300_000))]
    assert shown == ["never", 200.0]
    assert loss(TopicRetention(retention_ms=1), oldest=UNDATED).shown() is None


def test_from_settings() -> None:
    found = retention_from_config(
        {
            "cleanup.policy": "compact,delete",
            "retention.ms": "604800000",
            "retention.bytes": "-1",
            "segment.bytes": "1048576",
            "message.timestamp.type": "LogAppendTime",
        }
    )
    assert found == TopicRetention(True, 604_800_000, None, 1_048_576, "log_append_time")
    assert str(found) == "retention.ms=604800000"
    assert retention_from_config({"cleanup.policy": "compact", "retention.ms": "1"}).is_off
    assert retention_from_config({"retention.ms": "0"}).retention_ms == 0
    assert str(TopicRetention()) == "off: no retention.ms and no retention.bytes"
