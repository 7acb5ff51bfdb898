"""Tags of the runs that a sensor requests: how they are written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kpipe_platform.kafka.model.offsets import OffsetRange, Partition
from kpipe_platform.partitions.runs import GROUP, RANGES, bounded, requested_ranges, tags_of_ranges

PARTITIONS = "kpipe/partitions"
"""Run tag: Kafka partitions, ``3``, ``3-7`` or ``all``."""
RANGE_KEY = "kpipe/range_key"
"""Run tag: group, partitions and ranges; the run key without the attempt."""
ATTEMPT = "kpipe/attempt"
"""Run tag: 1 for the first run of this range key, then one more than the last."""


def range_key(group: str, partitions: str, ranges: Sequence[OffsetRange]) -> str:
    """Return the name of a run's ranges: ``{group}:{topic}/{partition}[{start}-{end}]`` for one partition.

    If the ranges of many partitions do not fit, a digest replaces them.
    """
    ordered = sorted(ranges)
    listed = ",".join([f"{r.topic}/{r.partition}[{r.start}-{r.end}]" for r in ordered])
    topics = ",".join(dict.fromkeys(r.topic for r in ordered))
    return bounded(f"{group}:{listed}", f"{group}:{topics}/{partitions}")


@dataclass(frozen=True)
class RequestedOffsets:
    """The offsets that a run was requested for.

    Args:
        committed: The group's offset in each Kafka partition; if it had none, the first offset to read. Unlike the
            first offset to read, it does not change when the log start moves.
    """

    committed: Mapping[Partition, int]

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> RequestedOffsets:
        """Parse a run's tags; empty if no kpipe sensor wrote them."""
        return cls({place: requested.committed for place, requested in requested_ranges(tags).items()})


__all__ = ["ATTEMPT", "GROUP", "PARTITIONS", "RANGES", "RANGE_KEY", "RequestedOffsets", "range_key", "tags_of_ranges"]
