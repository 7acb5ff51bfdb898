"""Settings of a run of slices: small values that the Dagster resources create. None of them is a resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kpipe_platform.dead_letters import Distribution
from kpipe_platform.dead_letters.envelope.origin import CORRELATION_HEADER
from kpipe_platform.dead_letters.write.context import Form, HeaderStyle
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.limits import NO_LIMIT, DeadLetterLimit
from kpipe_platform.slices.plan.ranges import LastMaterialization, PlanPolicy


class Engine(Protocol):
    """A Spark session that is created at first use."""

    @property
    def spark_session(self) -> Any:
        """The session."""

    @property
    def tasks_at_once(self) -> int:
        """How many tasks it runs at once."""

    @property
    def known_tasks_at_once(self) -> int | None:
        """How many tasks it runs at once; None if that is unknown."""

    @property
    def remote(self) -> str | None:
        """Address of the Spark Connect server; None for a session in this process."""


@dataclass(frozen=True)
class RunInfo:
    """The run and the asset that take the slices.

    Args:
        asset: The asset's key as text.
        group: Its consumer group.
        run_id: Id of the run.
        attempt: Attempt of the run's step, from 1.
        provenance: The deployment and the process that run the step.
        last_materialization: Returns the last materialization of a Kafka partition. Called only if the group has no
            offset.
        partition_keys: All partition keys of the asset; None for an asset without partitions.
    """

    asset: str
    group: str
    run_id: str
    attempt: int
    provenance: Distribution
    last_materialization: Callable[[Partition], LastMaterialization | None]
    partition_keys: frozenset[str] | None = None


@dataclass(frozen=True)
class RunLimits:
    """How many consecutive slices one materialization takes from a Kafka partition.

    Args:
        max_slices: Maximum number of slices; None: until caught up. Default 1.
        max_duration_s: Time after which no further slice is taken, seconds; None: no limit.
        linger_s: How long to wait for new records after the last ones, seconds; None: end when caught up.
    """

    max_slices: int | None = 1
    max_duration_s: float | None = None
    linger_s: float | None = None


@dataclass(frozen=True)
class Parallelism:
    """Limits of parallel work.

    Args:
        partitions_at_once: Kafka partitions that are processed at the same time.
        writers_per_partition: Parts of one partition's slice that are written at the same time.
    """

    partitions_at_once: int = 1
    writers_per_partition: int = 1


@dataclass(frozen=True)
class DestinationSettings:
    """How outputs are written to Kafka; see ``KafkaDestination``.

    Args:
        connection: The cluster.
        delivery: ``exactly_once`` or ``at_least_once``.
        compression: Batch compression.
        transaction_timeout_s: The brokers abort a transaction that is open for longer, seconds.
        delivery_timeout_s: Maximum wait for the acknowledgment of one record, seconds.
        stamp_source: Whether outputs get provenance headers.
        correlation_header: Header for the correlation id; None: no header is added.
        preview_rows: Number of written records to show in the metadata.
        producer: Further librdkafka producer properties.
    """

    connection: ConnectionSettings
    delivery: Literal["exactly_once", "at_least_once"]
    compression: str
    transaction_timeout_s: float
    delivery_timeout_s: float
    stamp_source: bool
    correlation_header: str | None
    preview_rows: int
    producer: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeadLetterSettings:
    """How dead letters are written; see ``KafkaDeadLetterDestination``.

    Args:
        connection: The cluster.
        topic: Topic name; ``{source_topic}`` is replaced.
        form: ``envelope`` or ``raw``.
        create_topic: Whether a missing topic is created.
        header_families: Error headers to write, in this order.
        oversized: How to handle a payload that does not fit into an envelope: ``reference`` or ``raw``.
        correlation_header: Header of the source record that contains its correlation id.
        redact: Redaction hook, ``package.module:function``; None: nothing is redacted.
    """

    connection: ConnectionSettings
    topic: str
    form: Form = "envelope"
    create_topic: bool = False
    header_families: tuple[HeaderStyle, ...] = ("connect",)
    oversized: Literal["reference", "raw"] = "reference"
    correlation_header: str = CORRELATION_HEADER
    redact: str | None = None


@dataclass(frozen=True)
class SliceSettings:
    """All settings of the steps of a slice.

    Args:
        run: The run and the asset that take the slices.
        engine: The Spark engine.
        source: The source cluster.
        policy: The plans' policy.
        policies: Fault actions and retries.
        destination: How outputs are written; None if no output goes to Kafka.
        dead_letter: How dead letters are written; None without a dead-letter destination.
        limit: Maximum share of failed records in a slice.
        parallelism: Limits of parallel work.
        hide_messages: Whether to hide the messages of faults, which may contain values that a redaction hook removes.
    """

    run: RunInfo
    engine: Engine
    source: ConnectionSettings
    policy: PlanPolicy
    policies: FaultPolicies
    destination: DestinationSettings | None = None
    dead_letter: DeadLetterSettings | None = None
    limit: DeadLetterLimit = NO_LIMIT
    parallelism: Parallelism = Parallelism()
    hide_messages: bool = False
