"""What a run of slices needs to know: small values that Dagster's resources give. Nothing here is a resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kpipe_platform.dead_letters import Distribution
from kpipe_platform.dead_letters.envelope.origin import CORRELATION_HEADER
from kpipe_platform.dead_letters.write.context import Form, HeaderStyle
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.policies.components import FaultPolicies
from kpipe_platform.policies.limits import NO_LIMIT, DeadLetterLimit
from kpipe_platform.slices.plan.ranges import LastMaterialization, PlanPolicy


class Engine(Protocol):
    """A Spark session, made at first use."""

    @property
    def spark_session(self) -> Any:
        """The session."""

    @property
    def tasks_at_once(self) -> int:
        """How many tasks it runs at once."""

    @property
    def known_tasks_at_once(self) -> int | None:
        """The same; None where that would be a guess."""

    @property
    def remote(self) -> str | None:
        """Address of the Spark Connect server; None for a session of this process."""


@dataclass(frozen=True)
class RunInfo:
    """Which run of which asset takes the slices.

    Args:
        asset: The asset's key as text.
        group: Its consumer group.
        run_id: Id of the run.
        attempt: 1 for the first try of the run's step.
        provenance: Which deployment and which process do the work.
        last_materialization: Where the last materialization of a Kafka partition ended; asked only where the group has
            no offset.
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
    """How many consecutive slices one materialization takes of a Kafka partition.

    Args:
        max_slices: At most this many; None: until caught up.
        max_duration_s: Take no further slice after this long, seconds; None: no limit.
        linger_s: Wait for new records for this long after the last ones, seconds; None: end when caught up.
    """

    max_slices: int | None = 1
    max_duration_s: float | None = None
    linger_s: float | None = None


@dataclass(frozen=True)
class Parallelism:
    """What may run at the same time.

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
        delivery_timeout_s: How long one record may wait for its acknowledgment, seconds.
        stamp_source: Whether outputs get provenance headers.
        correlation_header: Header that carries the correlation id; None: none is added.
        preview_rows: Written records to show in the metadata.
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
        oversized: What becomes of a payload that does not fit into an envelope: ``reference`` or ``raw``.
        correlation_header: Header of the record that holds its correlation id.
        redact: Redaction hook, ``package.module:function``; None: everything is kept.
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
    """Everything that the steps of a slice need to know besides the slice.

    Args:
        run: Which run of which asset takes the slices.
        engine: Spark.
        source: The cluster that is read.
        policy: What decides the plans.
        policies: What happens to a record that fails, and what is retried.
        destination: How outputs are written; None where no output goes to Kafka.
        dead_letter: How dead letters are written; None where there is no such destination.
        limit: The largest share of failed records in a slice.
        parallelism: What may run at the same time.
        hide_messages: Show faults without their messages, which may quote what a redaction hook takes out.
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
