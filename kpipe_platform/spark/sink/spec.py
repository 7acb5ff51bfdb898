"""What the driver tells the writer task, pickled, and what the task answers, as JSON. Neither imports Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kpipe_platform.codecs import Codec
from kpipe_platform.dead_letters import DeadLetterContext
from kpipe_platform.errors import ConfigError, KpipeError
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.policies.components import FaultPolicies
from kpipe_platform.policies.faults import Fault, FaultAction
from kpipe_platform.policies.limits import NO_LIMIT, DeadLetterLimit
from kpipe_platform.spark.stage.notes import RuleCount

NO_OUTPUT = b""
"""Note of a record of which the stage has no output; other notes of what is no output are JSON."""

MISFIT_NOTE = b"!"
"""Begins the note of an output that does not fit the schema of its topic; the reason follows."""

KIND_FAULT, KIND_COUNT, KIND_NOTED, KIND_RULE, KIND_END = 1, 2, 3, 4, 5
"""Kinds of rows that are no outputs: a record that does not decode, with its bytes; records read, a row a range; a
record that the stage set aside, by its coordinates; what one rule found; that nothing comes after it."""

DEFAULT_COMPRESSION = "lz4"
"""Compression of dead letters where no output goes to Kafka."""

Rejected = tuple[int, int] | str
"""What the destination will not take: (index of the range, offset) of the source record, or, where the stage
dropped ``_kafka``, a digest of the output record."""


@dataclass(frozen=True)
class WriterSpec:
    """Everything that the writer task needs.

    Args:
        settings: The connection for outputs and dead letters.
        source_settings: The connection to the slice's source, which may be another cluster at least once.
        slice: The plan.
        mode: ``transactional`` (exactly once), ``idempotent`` (at least once, several tasks at a time) or ``probe``:
            find out, in transactions that are always aborted, which records the brokers refuse; or ``count``: send
            nothing, and say what would stop the run.
        topic: Destination topic; None when only dead letters are written.
        limits: What the destination topic takes.
        dead_letters: For each range of the slice where and how its dead letters are written; None when the action
            needs none.
        policies: What happens to a record that fails, by the part of the pipeline that it failed in.
        limit: The largest share of failed records.
        codecs: (key, value) codec of each range of the slice, to say why a record does not decode.
        rejected: Records not to write again, with the reason; their dead letters are written instead.
        stamp_source: Add the header ``kpipe.source`` to outputs whose source is known.
        stamps: Further headers of these outputs, the same for all: who wrote them. They take the place of those that
            a record brought from an earlier hop.
        correlation_header: Header that carries the correlation id to stamped outputs that lack it; None adds none.
        preview_rows: Outputs to show in the metadata.
        hide_messages: Show faults without their messages, which may quote what a redaction hook takes out.
        producer: librdkafka producer properties.
        started_ms: When the Spark job was started, milliseconds since the epoch.
        after_input: Take over the transactional id only when the first rows are there, because the stage runs in the
            writer's own task: where it fails, the writer must not fence the next one, after its own end.
        per_record: Each row is a record that was read, and counts as one.
        transaction_timeout_s: Transaction timeout, seconds.
        delivery_timeout_s: How long one record may wait for its acknowledgement, seconds.
    """

    settings: ConnectionSettings
    source_settings: ConnectionSettings
    slice: Slice
    mode: Literal["transactional", "idempotent", "probe", "count"]
    topic: str | None
    limits: TopicLimits
    dead_letters: tuple[DeadLetterContext | None, ...]
    policies: FaultPolicies
    codecs: tuple[tuple[Codec, Codec], ...]
    isolation: str
    rejected: dict[Rejected, Fault] = field(default_factory=dict)
    limit: DeadLetterLimit = NO_LIMIT
    stamp_source: bool = True
    stamps: tuple[tuple[str, bytes], ...] = ()
    correlation_header: str | None = "correlation-id"
    preview_rows: int = 5
    hide_messages: bool = False
    producer: dict[str, Any] = field(default_factory=dict)
    started_ms: int | None = None
    after_input: bool = False
    per_record: bool = False
    transaction_timeout_s: float = 300.0
    delivery_timeout_s: float = 60.0

    @property
    def output_topic(self) -> str:
        """The destination topic of a spec that has outputs to write."""
        if self.topic is None:
            msg = f"{self.slice}: there are outputs, and no topic to write them to"
            raise ConfigError(msg)
        return self.topic

    @property
    def compression(self) -> str:
        """How batches of outputs are compressed: ``none``, or librdkafka's name."""
        return str(self.producer.get("compression.type", "none"))

    @property
    def record_limits(self) -> list[int]:
        """The largest records that the topics written here take, bytes."""
        letters = [context.max_record_bytes for context in self.dead_letters if context is not None]
        return [self.limits.max_message_bytes, *letters]


@dataclass(frozen=True)
class FaultSample:
    """One failed record: where it is, why it failed, and what its action is."""

    topic: str
    partition: int
    offset: int | None
    fault: Fault
    action: FaultAction = FaultAction.STOP

    def __str__(self) -> str:
        at = "output record" if self.offset is None else f"offset {self.offset}"
        return f"{self.topic}/{self.partition} {at}: {self.fault.message}"


@dataclass(frozen=True)
class PreviewRow:
    """One written record, shortened for people."""

    key: str | None
    value: str | None


@dataclass
class Outcome:
    """What one writer task did.

    Args:
        status: ``committed``; ``committed_earlier`` (an earlier attempt of this slice did it); ``written`` (acked,
            offsets not moved by this task); ``faults`` (records failed and the action is to stop); ``rejected``
            (the destination will not take ``rejected``, which this pass could not dead-letter); ``broker_rejected``
            (the brokers refused a batch, so the culprits must be found); ``disordered`` (the rows came in another order
            than theirs); ``over_limit`` (more records failed than the limit allows); ``counted`` (nothing was sent);
            ``error``.
        counts: Counted records by range of the slice.
        faults: Number of failed records seen.
        samples: The first of them.
        reasons: Number of dead letters by reason.
        rules: What each rule found, by name.
        rejected: Records that the destination will not take, and that this pass did not dead-letter.
        error: What went wrong, with status ``error``.
        steps_s: Seconds by step.
    """

    status: str
    counts: dict[int, SliceCounts] = field(default_factory=dict)
    faults: int = 0
    samples: list[FaultSample] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    rules: dict[str, RuleCount] = field(default_factory=dict)
    rejected: dict[Rejected, Fault] = field(default_factory=dict)
    preview: list[PreviewRow] = field(default_factory=list)
    error: KpipeError | None = None
    steps_s: dict[str, float] = field(default_factory=dict)

    @property
    def failure(self) -> KpipeError | None:
        """What went wrong, with the part of the pipeline that it belongs to; None where nothing did."""
        if self.error is not None:
            self.error.part = self.error.part or "destination"
        return self.error

    def raise_error(self) -> None:
        """Raise what went wrong, if anything did."""
        failure = self.failure
        if failure is not None:
            raise failure

    @property
    def total(self) -> SliceCounts:
        """The counts of all ranges together."""
        return sum(self.counts.values(), SliceCounts())
