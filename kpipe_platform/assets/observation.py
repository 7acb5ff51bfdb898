"""Observations of a topic: the state of each partition and its growth since the last observation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from kpipe_platform import metadata_keys as keys
from kpipe_platform.kafka.admin.groups import CommittedOffset, committed_offsets
from kpipe_platform.kafka.admin.retention import TimeToLoss, TopicRetention, time_to_loss, topic_retention
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, Partition, Watermarks, read_watermarks
from kpipe_platform.kafka.read.samples import SAMPLE_RECORDS, OldestRecord, oldest_records
from kpipe_platform.resources.source import KafkaSource

DATA_VERSION = "dagster/data_version"
# Maximum number of ids in one query of Dagster's storage.
_RECORDS_AT_ONCE = 500


@dataclass(frozen=True)
class Observed:
    """A partition's last observation.

    Args:
        end: Log end at that time.
        topic_id: Id of the topic at that time; None if the observation does not contain it.
        at_s: Time of the observation, seconds since the epoch.
    """

    end: int
    topic_id: str | None
    at_s: float


@dataclass(frozen=True)
class GroupStanding:
    """The state of a consumer group in one partition.

    Args:
        group: Consumer group.
        committed: Its committed offset; None if it stores none.
        lag: Its lag, in offsets; None if it stores no offset.
        loss: Time until retention deletes unprocessed offsets; None if it stores no offset.
    """

    group: str
    committed: int | None
    lag: int | None
    loss: TimeToLoss | None


@dataclass(frozen=True)
class PartitionObservation:
    """The observed state of one partition of a topic.

    Args:
        watermarks: Log start and log end at the source's isolation.
        topic_id: Id of the topic.
        retention: The topic's retention settings.
        per_s: Offsets per second since the last observation; None if there is none, or if it is of a topic that was
            recreated since.
        since_s: Seconds since the last observation; None in the same cases.
        groups: The state of each known group that reads the topic.
    """

    watermarks: Watermarks
    topic_id: str
    retention: TopicRetention
    per_s: float | None
    since_s: float | None
    groups: tuple[GroupStanding, ...]

    def tags(self) -> dict[str, str]:
        """Return the data version tag: the log end. Downstream assets of the partition become stale when it moves."""
        return {DATA_VERSION: str(self.watermarks.end)}

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the observation.

        Returns:
            By key: the watermarks and the number of offsets between them; the growth since the partition's last
            observation, null in the first one; if groups are known, a table with committed offset, lag and seconds to
            loss of each, and the minimum of these over the groups: seconds, "never", or null if it is not known; the
            topic's settings and id.
        """
        found: dict[str, Any] = {
            keys.LOG_START: dg.MetadataValue.int(self.watermarks.log_start),
            keys.LOG_END: dg.MetadataValue.int(self.watermarks.end),
            keys.OFFSET_COUNT: dg.MetadataValue.int(self.watermarks.end - self.watermarks.log_start),
            keys.OFFSETS_PER_S: _number(self.per_s),
            keys.SINCE_S: _number(self.since_s),
        }
        if self.groups:
            found[keys.TIME_TO_LOSS_S] = _value(soonest(self.groups))
            found[keys.CONSUMER_GROUPS] = dg.MetadataValue.table(
                [dg.TableRecord(_row(standing)) for standing in self.groups]
            )
        return {
            **found,
            keys.TIMESTAMP_TYPE: self.retention.timestamp_type,
            keys.RETENTION: str(self.retention),
            keys.TOPIC_ID: self.topic_id,
        }


def _number(value: float | None) -> dg.MetadataValue[Any]:
    return dg.MetadataValue.null() if value is None else dg.MetadataValue.float(round(value, 3))


def _value(loss: TimeToLoss | None) -> dg.MetadataValue[Any]:
    shown = None if loss is None else loss.shown()
    return dg.MetadataValue.text(shown) if isinstance(shown, str) else _number(shown)


def _row(standing: GroupStanding) -> dict[str, str | int | float | bool | None]:
    loss = standing.loss
    return {
        "group": standing.group,
        "committed": standing.committed,
        "lag": standing.lag,
        "time_to_loss_s": None if loss is None else loss.shown(),
        "why": "the group stores no offset" if loss is None else loss.why,
    }


def soonest(groups: Sequence[GroupStanding]) -> TimeToLoss | None:
    """Return the shortest time to loss of several groups; None if no group stores an offset."""
    known = [standing.loss for standing in groups if standing.loss is not None]
    unknown = next((loss for loss in known if loss.seconds is None), None)
    least = min(
        (loss for loss in known if loss.seconds is not None), key=lambda loss: loss.seconds or 0.0, default=None
    )
    # An unknown time may be shorter than the shortest known one, unless that is 0.
    return unknown if unknown is not None and (least is None or least.seconds) else least


def observe_topic(
    source: KafkaSource,
    topic: str,
    groups: Sequence[str],
    earlier: Callable[[], Mapping[int, Observed]],
    numbers: Iterable[int] | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> dict[int, PartitionObservation]:
    """Read the state of a topic's partitions from the brokers.

    The number of broker calls grows with the number of groups, but not with the number of partitions: one topic
    description, one for the settings, two for the watermarks, and for each group one for its offsets, plus one client
    that reads the group's oldest unprocessed records.

    Args:
        source: Source with the connection and the isolation.
        topic: Topic name.
        groups: Consumer groups that read the topic.
        earlier: Returns the last observations by partition; called only if the topic exists.
        numbers: Kafka partitions; None: all. Numbers that the topic does not have are ignored.
        clock: Returns seconds since the epoch; injected for tests.

    Returns:
        The state of each partition, by partition number.

    Raises:
        KpipeError: The topic does not exist, or the brokers do not respond.
    """
    with source.clients() as clients:
        described = describe_topics(clients, [topic])[topic]
        requested = range(described.partitions) if numbers is None else [n for n in numbers if n < described.partitions]
        wanted = [(topic, number) for number in requested]
        if not wanted:
            return {}
        retention = topic_retention(clients, topic)
        # Offsets are read before the log ends, so that a lag is never negative.
        committed = {group: committed_offsets(clients, group, wanted) for group in groups}
        watermarks = read_watermarks(clients, wanted, source.isolation)
        now_s = clock()
        oldest = {
            group: _oldest(clients, source.isolation, group, retention, watermarks, offsets)
            for group, offsets in committed.items()
        }
    before = earlier()
    found = {}
    for partition in wanted:
        mark = watermarks[partition]
        last = before.get(partition[1])
        since_s, per_s = _growth(last, mark.end, described.topic_id, now_s)
        standings = tuple(
            _standing(group, offsets.get(partition), mark, retention, oldest[group].get(partition), now_s, per_s)
            for group, offsets in committed.items()
        )
        found[partition[1]] = PartitionObservation(mark, described.topic_id, retention, per_s, since_s, standings)
    return found


def _growth(last: Observed | None, end: int, topic_id: str, now_s: float) -> tuple[float | None, float | None]:
    """Return the seconds and the offsets per second since the last observation of the same topic id."""
    if last is None or last.topic_id not in (None, topic_id) or end < last.end or now_s <= last.at_s:
        return None, None
    since_s = now_s - last.at_s
    return since_s, (end - last.end) / since_s


def _oldest(
    clients: Clients,
    isolation: str,
    group: str,
    retention: TopicRetention,
    watermarks: Mapping[Partition, Watermarks],
    offsets: Mapping[Partition, CommittedOffset | None],
) -> dict[Partition, OldestRecord | None]:
    if retention.is_off:
        return {}
    ranges = [
        OffsetRange(topic, number, stored.offset, watermarks[topic, number].end)
        for (topic, number), stored in offsets.items()
        if stored is not None and watermarks[topic, number].log_start <= stored.offset < watermarks[topic, number].end
    ]
    sample = 1 if retention.retention_bytes is None else SAMPLE_RECORDS
    return oldest_records(clients, group, ranges, isolation, sample=sample)


def _standing(
    group: str,
    stored: CommittedOffset | None,
    mark: Watermarks,
    retention: TopicRetention,
    oldest: OldestRecord | None,
    now_s: float,
    per_s: float | None,
) -> GroupStanding:
    if stored is None:
        return GroupStanding(group, None, None, None)
    loss = time_to_loss(
        retention, offset=stored.offset, watermarks=mark, oldest=oldest, now_ms=int(now_s * 1000), recent_per_s=per_s
    )
    return GroupStanding(group, stored.offset, max(mark.end - stored.offset, 0), loss)


def last_observations(instance: dg.DagsterInstance, asset_key: dg.AssetKey) -> dict[int, Observed]:
    """Return the last observation in Dagster of each partition of a topic's asset."""
    ids = instance.get_latest_storage_id_by_partition(asset_key, dg.DagsterEventType.ASSET_OBSERVATION)
    return dict(_observed(instance, asset_key, sorted(ids.values())))


def _observed(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, storage_ids: list[int]
) -> Iterator[tuple[int, Observed]]:
    for begin in range(0, len(storage_ids), _RECORDS_AT_ONCE):
        part = storage_ids[begin : begin + _RECORDS_AT_ONCE]
        for record in instance.fetch_observations(
            dg.AssetRecordsFilter(asset_key, storage_ids=part), limit=len(part)
        ).records:
            event = record.asset_observation
            metadata = keys.stored_metadata(event.metadata) if event is not None else {}
            end = metadata.get(keys.LOG_END)
            if event is None or event.partition is None or end is None or not event.partition.isdecimal():
                continue
            topic_id = metadata.get(keys.TOPIC_ID)
            yield (
                int(event.partition),
                Observed(int(str(end.value)), None if topic_id is None else str(topic_id.value), record.timestamp),
            )
