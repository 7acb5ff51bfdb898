"""Concurrency of partitions: how many are processed at once, and in what order."""

from __future__ import annotations

from enum import Enum

from pydantic import Field, model_validator

from kpipe_platform.resources.known_names import KnownNames

# Defaults of max_concurrent_partitions and max_in_flight_per_partition in modes that allow more than one.
_PARTITIONS_AT_ONCE = 4
_IN_FLIGHT_PER_PARTITION = 4


class ExecutionMode(str, Enum):
    """What may run at the same time."""

    PRESERVE_PARTITION_ORDER = "preserve_partition_order"
    """One partition after another, each in offset order."""

    PARALLELIZE_ACROSS_PARTITIONS = "parallelize_across_partitions"
    """Several partitions at once, each in offset order."""

    RELAX_ORDERING_WITHIN_PARTITION = "relax_ordering_within_partition"
    """Several partitions at once, and several parts of one partition's slice at once."""


class RebalanceMode(str, Enum):
    """What a deployment does with a partition that moves to another deployment."""

    DRAIN_AND_YIELD = "drain_and_yield"
    """Request no new runs, wait for the run in flight up to a deadline, then give up the partition."""

    STOP_ACCEPTING_NEW_WORK_AND_YIELD = "stop_accepting_new_work_and_yield"
    """Request no new runs and give up the partition immediately; a run in flight is fenced if it commits too late."""


class PartitionScaling(KnownNames):
    """Concurrency limits for one topic. They apply to sensors, to partition-range runs and within a slice.

    Args:
        execution_mode: What may run at the same time.
        max_records: Maximum number of offsets of one Kafka partition in a slice; None: up to the log end.
        max_concurrent_partitions: Maximum number of Kafka partitions that are processed at once, in the runs that a
            sensor requests and within a partition-range run. Each partition has its own Spark job and transaction.
            None: 1 with ``PRESERVE_PARTITION_ORDER``, otherwise 4.
        max_in_flight_per_partition: Maximum number of parts of one partition's slice that are staged and written at
            once, each in a separate transaction. More than 1 needs ``RELAX_ORDERING_WITHIN_PARTITION``. None: 4 in that
            mode, otherwise 1. A slice is never split into more parts than the engine runs tasks at once.
        rebalance_mode: What happens to a partition that moves to another deployment; see
            ``KafkaSource(ownership=...)``.
        emit_partition_execution_events: Whether to store the partition events of a run (started, completed, failed) as
            observations of the asset. All partition events are logged in any case.
    """

    execution_mode: ExecutionMode = Field(
        default=ExecutionMode.PRESERVE_PARTITION_ORDER, description="what may run at the same time"
    )
    max_records: int | None = Field(
        default=None, ge=1, description="maximum number of offsets of one partition in a slice"
    )
    max_concurrent_partitions: int | None = Field(
        default=None, ge=1, description="maximum number of partitions processed at once"
    )
    max_in_flight_per_partition: int | None = Field(
        default=None, ge=1, description="maximum number of parts of one partition's slice written at once"
    )
    rebalance_mode: RebalanceMode = Field(
        default=RebalanceMode.DRAIN_AND_YIELD,
        description="what happens to a partition that moves to another deployment",
    )
    emit_partition_execution_events: bool = Field(
        default=False, description="also store partition events as asset observations"
    )

    @model_validator(mode="after")
    def _fits_the_mode(self) -> PartitionScaling:
        preserves = self.execution_mode is ExecutionMode.PRESERVE_PARTITION_ORDER
        if preserves and (self.max_concurrent_partitions or 1) > 1:
            msg = (
                f"max_concurrent_partitions={self.max_concurrent_partitions} needs "
                "ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS: PRESERVE_PARTITION_ORDER processes them one by one"
            )
            raise ValueError(msg)
        if not self._relaxes and (self.max_in_flight_per_partition or 1) > 1:
            msg = (
                f"max_in_flight_per_partition={self.max_in_flight_per_partition} needs "
                "ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION: parts written at the same time do not keep their order"
            )
            raise ValueError(msg)
        return self

    @property
    def _relaxes(self) -> bool:
        return self.execution_mode is ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION

    @property
    def partitions_at_once(self) -> int:
        """Maximum number of Kafka partitions that are processed at the same time."""
        if self.max_concurrent_partitions is not None:
            return self.max_concurrent_partitions
        return 1 if self.execution_mode is ExecutionMode.PRESERVE_PARTITION_ORDER else _PARTITIONS_AT_ONCE

    @property
    def in_flight_per_partition(self) -> int:
        """Maximum number of parts of one partition's slice that are written at the same time."""
        if not self._relaxes:
            return 1
        return self.max_in_flight_per_partition or _IN_FLIGHT_PER_PARTITION
