"""How a topic's partitions share the work."""

from __future__ import annotations

import dagster as dg
from pydantic import Field


class PartitionScaling(dg.Config):
    """Bounds of one run.

    Args:
        max_records: Largest number of offsets of one Kafka partition in a slice; None: up to the log's end.
        max_concurrent_partitions: Kafka partitions of one partition-range run that are worked on at once, each with
            its own Spark job and transaction.
    """

    max_records: int | None = Field(default=None, ge=1, description="offsets of one partition in a slice, at most")
    max_concurrent_partitions: int = Field(default=4, ge=1, description="partitions of a range run at once")
