"""What a run that a sensor asked for says of itself, and how it is read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kpipe_platform.kafka.offsets import OffsetRange, Partition
from kpipe_platform.partitions.runs import GROUP, RANGES, asked_ranges

PARTITIONS = "kpipe/partitions"
"""Kafka partitions: ``3``, ``3-7``, ``all``."""
RANGE_KEY = "kpipe/range_key"
"""Names group, partitions and ranges; the run key without the attempt."""
ATTEMPT = "kpipe/attempt"
"""1 for the first run of this range key, then one more than the last."""

# Beyond this many characters a range key is a digest: it is looked up in the storage's index of tags, and MySQL's
# takes 64 characters at worst, but distinguishes by the whole value.
_LONGEST_KEY = 200


def range_key(group: str, partitions: str, ranges: Sequence[OffsetRange]) -> str:
    """Names what a run is asked for: ``{group}:{topic}/{partition}[{start}-{end}]`` for one partition.

    Where a run takes many, their ranges are told by a digest.
    """
    ordered = sorted(ranges)
    listed = ",".join([f"{r.topic}/{r.partition}[{r.start}-{r.end}]" for r in ordered])
    key = f"{group}:{listed}"
    if len(key) <= _LONGEST_KEY:
        return key
    topics = ",".join(dict.fromkeys(r.topic for r in ordered))
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return f"{group}:{topics}/{partitions}[{digest}]"


def ranges_to_text(ranges: Sequence[OffsetRange]) -> str:
    """The ranges as the value of a tag."""
    found: dict[str, dict[str, list[int]]] = {}
    for r in sorted(ranges):
        found.setdefault(r.topic, {})[str(r.partition)] = [r.start, r.end]
    return json.dumps(found, separators=(",", ":"))


@dataclass(frozen=True)
class AskedFor:
    """What a run was asked for.

    Args:
        starts: The first offset of each Kafka partition.
    """

    starts: Mapping[Partition, int]

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> AskedFor:
        """Read it from a run's tags; empty where they were not written by a sensor of kpipe."""
        return cls({place: start for place, (start, _) in asked_ranges(tags).items()})


__all__ = ["ATTEMPT", "GROUP", "PARTITIONS", "RANGES", "RANGE_KEY", "AskedFor", "range_key", "ranges_to_text"]
