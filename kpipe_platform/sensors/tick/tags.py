"""What a run that a sensor asked for says of itself, and how it is read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kpipe_platform.kafka.model.offsets import OffsetRange, Partition
from kpipe_platform.partitions.runs import GROUP, RANGES, asked_ranges, bounded, tags_of_ranges

PARTITIONS = "kpipe/partitions"
"""Kafka partitions: ``3``, ``3-7``, ``all``."""
RANGE_KEY = "kpipe/range_key"
"""Names group, partitions and ranges; the run key without the attempt."""
ATTEMPT = "kpipe/attempt"
"""1 for the first run of this range key, then one more than the last."""


def range_key(group: str, partitions: str, ranges: Sequence[OffsetRange]) -> str:
    """Names what a run is asked for: ``{group}:{topic}/{partition}[{start}-{end}]`` for one partition.

    Where a run takes many, their ranges are told by a digest.
    """
    ordered = sorted(ranges)
    listed = ",".join([f"{r.topic}/{r.partition}[{r.start}-{r.end}]" for r in ordered])
    topics = ",".join(dict.fromkeys(r.topic for r in ordered))
    return bounded(f"{group}:{listed}", f"{group}:{topics}/{partitions}")


@dataclass(frozen=True)
class AskedFor:
    """What a run was asked for.

    Args:
        committed: The group's offset in each Kafka partition; where it had none, the first offset to read. Unlike the
            first offset to read, it stays where it is when the log's start moves.
    """

    committed: Mapping[Partition, int]

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> AskedFor:
        """Read it from a run's tags; empty where they were not written by a sensor of kpipe."""
        return cls({place: asked.committed for place, asked in asked_ranges(tags).items()})


__all__ = ["ATTEMPT", "GROUP", "PARTITIONS", "RANGES", "RANGE_KEY", "AskedFor", "range_key", "tags_of_ranges"]
