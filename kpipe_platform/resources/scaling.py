"""How a topic's partitions share the work."""

from __future__ import annotations

from enum import Enum

from pydantic import Field, model_validator

from kpipe_platform.resources.known_names import KnownNames

# Partitions at once, and parts of a partition, where the mode allows several and nothing is said.
_PARTITIONS_AT_ONCE = 4
_IN_FLIGHT_PER_PARTITION = 4


class ExecutionMode(str, Enum):
    """What may run at the same time."""

    PRESERVE_PARTITION_ORDER = "preserve_partition_order"
    """One partition after another, each in its order."""

    PARALLELIZE_ACROSS_PARTITIONS = "parallelize_across_partitions"
    """Several partitions at once, each in its order."""

    RELAX_ORDERING_WITHIN_PARTITION = "relax_ordering_within_partition"
    """Several partitions at once, and several parts of one partition's slice at once."""


class RebalanceMode(str, Enum):
    """What a deployment does with a partition that another one is to take over."""

    DRAIN_AND_YIELD = "drain_and_yield"
    """Ask for no new run of it, wait for the one in flight up to a deadline, then give it up."""

    STOP_ACCEPTING_NEW_WORK_AND_YIELD = "stop_accepting_new_work_and_yield"
    """Ask for no new run of it and give it up at once; the run in flight is fenced if it is late."""


class PartitionScaling(KnownNames):
    """Bounds of the work on one topic, honoured by sensors, by partition-range runs and inside a slice.

    Args:
        execution_mode: What may run at the same time.
        max_records: Largest number of offsets of one Kafka partition in a slice; None: up to the log's end.
        max_concurrent_partitions: Kafka partitions that are worked on at once: runs that a sensor asks for, and
            partitions of a partition-range run, each with its own Spark job and transaction. None: 1 where the mode
            preserves the order of partitions, else 4.
        max_in_flight_per_partition: Parts of one partition's slice that are staged and written at once, each in a
            transaction of its own; more than 1 needs ``RELAX_ORDERING_WITHIN_PARTITION``. None: 4 there, else 1. A
            slice is never cut into more parts than the engine runs tasks at once.
        rebalance_mode: What happens to a partition that another deployment is to take over; see
            ``KafkaSource(ownership=...)``.
        emit_partition_execution_events: Also store the events of a run (a partition is started, completed, failed) as
            observations of the asset. All partition events are logged in any case.
    """

    execution_mode: ExecutionMode = Field(
        default=ExecutionMode.PRESERVE_PARTITION_ORDER, description="what may run at the same time"
    )
    max_records: int | None = Field(default=None, ge=1, description="offsets of one partition in a slice, at most")
    max_concurrent_partitions: int | None = Field(default=None, ge=1, description="partitions worked on at once")
    max_in_flight_per_partition: int | None = Field(
        default=None, ge=1, description="parts of one partition's slice written at once"
    )
    rebalance_mode: RebalanceMode = Field(
        default=RebalanceMode.DRAIN_AND_YIELD, description="what happens to a partition that is taken over"
    )
    emit_partition_execution_events: bool = Field(
        default=False, description="also store the partition events of runs as asset observations"
    )

    @model_validator(mode="after")
    def _fits_the_mode(self) -> PartitionScaling:
        preserves = self.execution_mode is ExecutionMode.PRESERVE_PARTITION_ORDER
        if preserves and (self.max_concurrent_partitions or 1) > 1:
            msg = (
                f"max_concurrent_partitions={self.max_concurrent_partitions} needs "
                "ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS: one partition after another is one at a time"
            )
            raise ValueError(msg)
        if not self._relaxes and (self.max_in_flight_per_partition or 1) > 1:
            msg = (
                f"max_in_flight_per_partition={self.max_in_flight_per_partition} needs "
                "ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION: parts that are written at the same time have no order"
            )
            raise ValueError(msg)
        return self

    @property
    def _relaxes(self) -> bool:
        return self.execution_mode is ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION

    @property
    def partitions_at_once(self) -> int:
        """Kafka partitions that may be worked on at the same time."""
        if self.max_concurrent_partitions is not None:
            return self.max_concurrent_partitions
        return 1 if self.execution_mode is ExecutionMode.PRESERVE_PARTITION_ORDER else _PARTITIONS_AT_ONCE

    @property
    def in_flight_per_partition(self) -> int:
        """Parts of one partition's slice that may be written at the same time."""
        if not self._relaxes:
            return 1
        return self.max_in_flight_per_partition or _IN_FLIGHT_PER_PARTITION
