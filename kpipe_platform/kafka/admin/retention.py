"""Time until retention deletes records that a group has not read, computed from a topic's settings.

Source: Kafka topic configuration (``cleanup.policy``, ``retention.ms``, ``retention.bytes``, ``segment.bytes``).
Brokers delete whole segments: by time when the newest timestamp of a segment is older than ``retention.ms``, by size
when the segments after it hold ``retention.bytes`` or more. So a record is never deleted before the times computed
here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka.admin import ConfigResource, ResourceType

from kpipe_platform.kafka.client.calls import ask
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import Watermarks
from kpipe_platform.kafka.model.records import TimestampType
from kpipe_platform.kafka.read.samples import OldestRecord

_DEFAULT_SEGMENT_BYTES = 1_073_741_824


@dataclass(frozen=True)
class TopicRetention:
    """A topic's retention settings.

    Args:
        deletes: True if ``cleanup.policy`` contains ``delete``.
        retention_ms: Age above which records may be deleted, milliseconds; None for no limit.
        retention_bytes: Size that a partition retains, bytes; None for no limit.
        segment_bytes: Segment size, bytes; segments are deleted whole.
        timestamp_type: Source of the timestamps: producers or brokers.
    """

    deletes: bool = True
    retention_ms: int | None = None
    retention_bytes: int | None = None
    segment_bytes: int = _DEFAULT_SEGMENT_BYTES
    timestamp_type: TimestampType = "create_time"

    @property
    def is_off(self) -> bool:
        """True if retention deletes nothing."""
        return not self.deletes or (self.retention_ms is None and self.retention_bytes is None)

    def __str__(self) -> str:
        if not self.deletes:
            return "off: cleanup.policy=compact"
        bounds = {"retention.ms": self.retention_ms, "retention.bytes": self.retention_bytes}
        limits = [f"{name}={value}" for name, value in bounds.items() if value is not None]
        return ", ".join(limits) or "off: no retention.ms and no retention.bytes"


@dataclass(frozen=True)
class TimeToLoss:
    """Earliest time at which retention may delete the record at a group's offset.

    Args:
        seconds: Seconds from now; 0 if the record may be deleted at any moment or is already deleted; infinity if it
            is never deleted; None if the time cannot be determined.
        why: The setting that decides, or why the time is unknown.
        lost: Number of offsets that were deleted before the group read them.
    """

    seconds: float | None
    why: str
    lost: int = 0

    def shown(self) -> float | str | None:
        """Return the seconds as a JSON value, with ``"never"`` for infinity."""
        if self.seconds is None or math.isfinite(self.seconds):
            return None if self.seconds is None else round(self.seconds, 1)
        return "never"


def topic_retention(clients: Clients, topic: str) -> TopicRetention:
    """Read a topic's retention settings, in one call.

    Raises:
        TopicNotFoundError: The topic does not exist.
        BrokerUnavailableError: No answer within the deadline.
        AuthorizationFailedError: The settings may not be read.
    """
    resource = ConfigResource(ResourceType.TOPIC, topic)
    timeout_s = clients.settings.request_timeout_s
    entries = ask(
        lambda: clients.admin().describe_configs([resource], request_timeout=timeout_s)[resource],
        clients,
        f"read the settings of topic {topic}",
        needs="DescribeConfigs",
        topic=topic,
    )
    return retention_from_config({name: entry.value for name, entry in entries.items()})


def retention_from_config(config: Mapping[str, str | None]) -> TopicRetention:
    """Build a TopicRetention from a topic's configuration values. Pure."""

    def bound(name: str) -> int | None:
        # Kafka uses -1 for no limit.
        value = int(config.get(name) or -1)
        return None if value < 0 else value

    appended = config.get("message.timestamp.type") == "LogAppendTime"
    return TopicRetention(
        deletes="delete" in (config.get("cleanup.policy") or "delete"),
        retention_ms=bound("retention.ms"),
        retention_bytes=bound("retention.bytes"),
        segment_bytes=bound("segment.bytes") or _DEFAULT_SEGMENT_BYTES,
        timestamp_type="log_append_time" if appended else "create_time",
    )


def growth_per_s(offset: int, end: int, oldest: OldestRecord | None, now_ms: int) -> float | None:
    """Return the offsets written per second since the oldest unread record; None if its age is unknown."""
    if oldest is None or oldest.timestamp_ms is None or now_ms <= oldest.timestamp_ms:
        return None
    return (end - offset) / ((now_ms - oldest.timestamp_ms) / 1000)


def time_to_loss(
    retention: TopicRetention,
    *,
    offset: int,
    watermarks: Watermarks,
    oldest: OldestRecord | None,
    now_ms: int,
    recent_per_s: float | None = None,
) -> TimeToLoss:
    """Compute the earliest time at which retention may delete the record at a group's offset. Pure.

    Args:
        retention: The topic's settings.
        offset: The group's next offset.
        watermarks: Log start and end of the partition.
        oldest: First record at or after the offset; None if there is none.
        now_ms: Current time, milliseconds since the epoch.
        recent_per_s: Recent write rate, offsets per second. The mean rate since the oldest record is used if it is
            higher.
    """
    if offset < watermarks.log_start:
        lost = watermarks.log_start - offset
        return TimeToLoss(0.0, f"offsets [{offset}, {watermarks.log_start}) were deleted before they were read", lost)
    if offset >= watermarks.end:
        return TimeToLoss(math.inf, "no unread records")
    if retention.is_off:
        return TimeToLoss(math.inf, f"retention is {retention}")
    if oldest is None:
        return TimeToLoss(math.inf, "no unread records, only transaction markers")
    bounds = [_by_time(retention, oldest, now_ms)] if retention.retention_ms is not None else []
    if retention.retention_bytes is not None:
        rates = [r for r in (growth_per_s(offset, watermarks.end, oldest, now_ms), recent_per_s) if r]
        bounds.append(_by_size(retention, watermarks, watermarks.end - offset, oldest, max(rates, default=None)))
    known = [bound for bound in bounds if bound.seconds is not None]
    unknown = [bound for bound in bounds if bound.seconds is None]
    soonest = min(known, key=lambda bound: bound.seconds or 0.0, default=None)
    if unknown and (soonest is None or soonest.seconds):
        # The unknown limit might apply first.
        return unknown[0]
    return soonest or TimeToLoss(math.inf, "no unread records")


def _by_time(retention: TopicRetention, oldest: OldestRecord, now_ms: int) -> TimeToLoss:
    if oldest.timestamp_ms is None:
        return TimeToLoss(None, f"the record at offset {oldest.offset} has no timestamp")
    left_ms = oldest.timestamp_ms + (retention.retention_ms or 0) - now_ms
    return TimeToLoss(max(left_ms / 1000, 0.0), f"retention.ms={retention.retention_ms}")


def _by_size(
    retention: TopicRetention, watermarks: Watermarks, waiting: int, oldest: OldestRecord, per_s: float | None
) -> TimeToLoss:
    limit = retention.retention_bytes or 0
    # A log is never much larger than its limit plus one segment. In a full log of compressed records, that gives a
    # better estimate of the size per offset than the decompressed records do.
    each = min(oldest.mean_bytes, (limit + retention.segment_bytes) / (watermarks.end - watermarks.log_start))
    left = limit - waiting * each
    why = f"retention.bytes={limit}, about {each:.0f} bytes per offset"
    if left <= 0:
        return TimeToLoss(0.0, why)
    if per_s is None:
        return TimeToLoss(None, f"{why}, unknown growth rate of the log")
    return TimeToLoss(left / (per_s * each), f"{why}, {per_s:.3g} offsets/s")
