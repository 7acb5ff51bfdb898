"""Every record of a source is in the outputs or in the dead letters: once, and in order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from kpipe_platform.spark.sink.task.outputs import SOURCE_HEADER
from kpipe_platform.testing.messages import ConsumedRecord

Place = tuple[int, int]
"""A partition and an offset of the source."""


def assert_each_once(
    source: Iterable[ConsumedRecord], outputs: Iterable[ConsumedRecord], letters: Iterable[ConsumedRecord]
) -> tuple[dict[Place, ConsumedRecord], dict[Place, ConsumedRecord]]:
    """Compare where records come from, by what kpipe says beside each, with what is in the source.

    Args:
        source: All records of the source topic, of which there is one at least.
        outputs: All records of the destination.
        letters: All dead letters.

    Returns:
        Outputs and dead letters, by the place of the record that they come from.
    """
    source = list(source)
    (topic,) = {record.topic for record in source}
    wanted = {(record.partition, record.offset) for record in source}
    written = [(_source(record, topic), record) for record in outputs]
    dead = [(_origin(record, topic), record) for record in letters]
    times = Counter(place for place, _ in [*written, *dead])
    assert sorted(wanted - times.keys())[:10] == [], "lost"
    assert sorted(times.keys() - wanted)[:10] == [], "from nowhere"
    assert sorted(place for place, count in times.items() if count > 1)[:10] == [], "twice"
    for found in (written, dead):
        _assert_ordered(found)
    return dict(written), dict(dead)


def _source(record: ConsumedRecord, topic: str) -> Place:
    found, partition, offset = dict(record.headers)[SOURCE_HEADER].decode().rsplit("/", 2)
    assert found == topic
    return int(partition), int(offset)


def _origin(record: ConsumedRecord, topic: str) -> Place:
    original = json.loads(record.value or b"{}")["original"]
    assert original["topic"] == topic
    return original["partition"], original["offset"]


def _assert_ordered(found: list[tuple[Place, ConsumedRecord]]) -> None:
    """In each partition of the output the records of one partition of the source have ascending offsets."""
    last: dict[Place, int] = {}
    for (partition, offset), record in sorted(found, key=lambda each: (each[1].partition, each[1].offset)):
        way = (partition, record.partition)
        assert offset > last.get(way, -1), f"{record.partition}/{record.offset} is out of order"
        last[way] = offset
