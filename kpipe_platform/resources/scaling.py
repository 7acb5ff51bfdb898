"""How a topic's partitions share the work."""

from __future__ import annotations

from enum import Enum

import dagster as dg
from pydantic import Field, model_validator

# Partitions at once where the mode allows several and nothing is said.
_PARTITIONS_AT_ONCE = 4


class ExecutionMode(str, Enum):
    """What may run at the same time."""

    PRESERVE_PARTITION_ORDER = "preserve_partition_order"
    """One partition after another, each in its order."""

    PARALLELIZE_ACROSS_PARTITIONS = "parallelize_across_partitions"
    """Several partitions at once, each in its order."""


class PartitionScaling(dg.Config):
    """Bounds of the work on one topic, honoured by sensors, by partition-range runs and inside a slice.

    Args:
        execution_mode: What may run at the same time.
        max_records: Largest number of offsets of one Kafka partition in a slice; None: up to the log's end.
        max_concurrent_partitions: Kafka partitions that are worked on at once: runs that a sensor asks for, and
            partitions of a partition-range run, each with its own Spark job and transaction. None: 1 where the mode
            preserves the order of partitions, else 4.
    """

    execution_mode: ExecutionMode = Field(
        default=ExecutionMode.PRESERVE_PARTITION_ORDER, description="what may run at the same time"
    )
    max_records: int | None = Field(default=None, ge=1, description="offsets of one partition in a slice, at most")
    max_concurrent_partitions: int | None = Field(default=None, ge=1, description="partitions worked on at once")

    @model_validator(mode="after")
    def _fits_the_mode(self) -> PartitionScaling:
        preserves = self.execution_mode is ExecutionMode.PRESERVE_PARTITION_ORDER
        if preserves and (self.max_concurrent_partitions or 1) > 1:
            msg = (
                f"max_concurrent_partitions={self.max_concurrent_partitions} needs "
                "ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS: one partition after another is one at a time"
            )
            raise ValueError(msg)
        return self

    @property
    def partitions_at_once(self) -> int:
        """Kafka partitions that may be worked on at the same time."""
        if self.max_concurrent_partitions is not None:
            return self.max_concurrent_partitions
        return 1 if self.execution_mode is ExecutionMode.PRESERVE_PARTITION_ORDER else _PARTITIONS_AT_ONCE
