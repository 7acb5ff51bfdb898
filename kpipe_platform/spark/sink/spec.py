"""The writer task's input (`WriterSpec`, pickled) and output (`Outcome`, as JSON). Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kpipe_platform.codecs import Codec
from kpipe_platform.dead_letters import DeadLetterContext
from kpipe_platform.errors import ConfigError, KpipeError
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.faults import Fault, FaultAction
from kpipe_platform.policies.limits import NO_LIMIT, DeadLetterLimit
from kpipe_platform.spark.stage.notes import RuleCount

NO_OUTPUT = b""
"""Note of a record for which the stage has no output. All other notes of rows that are not outputs are JSON."""

MISFIT_NOTE = b"!"
"""Prefix of the note of an output that does not fit the schema of its topic. The reason follows it."""

KIND_FAULT, KIND_COUNT, KIND_NOTED, KIND_RULE, KIND_END = 1, 2, 3, 4, 5
"""Kinds of rows that are not outputs: ``KIND_FAULT``, a record that does not decode, with its bytes; ``KIND_COUNT``,
the number of records read, one row per range; ``KIND_NOTED``, the coordinates of a record that the stage set aside;
``KIND_RULE``, the count of one rule; ``KIND_END``, the last row."""

DEFAULT_COMPRESSION = "lz4"
"""Default compression of the writer's producer. Dead letters use it if no output goes to Kafka."""

Rejected = tuple[int, int] | str
"""Identity of an output that the destination rejects: (index of the range, offset) of the source record, or a digest
of the output record if the stage dropped ``_kafka``."""


@dataclass(frozen=True)
class OutputTopic:
    """A topic for outputs.

    Args:
        name: Topic name.
        limits: The topic's limits.
    """

    name: str
    limits: TopicLimits


@dataclass(frozen=True)
class WriterSpec:
    """Everything that a writer task needs.

    Args:
        settings: The connection for outputs and dead letters.
        source_settings: The connection to the slice's source. With at-least-once delivery it may be another cluster.
        slice: The slice to write.
        mode: ``transactional`` (exactly once, one task), ``parallel`` (at least once, several parallel tasks),
            ``find_refused`` (find the records that the brokers reject, in transactions that are aborted) or ``count``
            (send nothing, and report what would stop the run).
        outputs: The topics for outputs; empty if only dead letters are written. With several, each row has the index of
            its topic in the column ``dest``.
        dead_letters: For each range of the slice, where and how its dead letters are written; None if the action
            does not need them.
        policies: Actions for failed records, by the component that failed.
        isolation: Isolation level for reading original records: ``read_committed`` or ``read_uncommitted``.
        limit: The largest allowed share of failed records.
        codecs: (key, value) codecs of each range of the slice. They explain why a record does not decode.
        rejected: Records that an earlier pass found rejected, with the reason. They are dead-lettered, not written.
        stamp_source: Add the header ``kpipe.source`` to outputs whose source is known.
        provenance: Provenance headers of these outputs, the same for all. They replace those from an earlier hop.
        correlation_header: Name of the header in which outputs with a known source carry the correlation id, if they
            have none yet; None adds no header.
        preview_rows: Number of outputs to show in the metadata.
        hide_messages: Show faults without their messages, which may quote data that a redaction hook removes.
        producer: librdkafka producer properties.
        started_ms: When the Spark job was started, milliseconds since the epoch.
        after_input: Initialize the transactional id only after the first rows arrive. Needed if the stage runs in the
            writer's own task: after a stage failure, a late writer must not fence the next one.
        per_record: Each row stands for one record that was read.
        read: Number of records read from each range, by its index, if it is known before the write.
        transaction_timeout_s: Transaction timeout, seconds.
        delivery_timeout_s: How long one record may wait for its acknowledgement, seconds.
    """

    settings: ConnectionSettings
    source_settings: ConnectionSettings
    slice: Slice
    mode: Literal["transactional", "parallel", "find_refused", "count"]
    outputs: tuple[OutputTopic, ...]
    dead_letters: tuple[DeadLetterContext | None, ...]
    policies: FaultPolicies
    codecs: tuple[tuple[Codec, Codec], ...]
    isolation: str
    rejected: dict[Rejected, Fault] = field(default_factory=dict)
    limit: DeadLetterLimit = NO_LIMIT
    stamp_source: bool = True
    provenance: tuple[tuple[str, bytes], ...] = ()
    correlation_header: str | None = "correlation-id"
    preview_rows: int = 5
    hide_messages: bool = False
    producer: dict[str, Any] = field(default_factory=dict)
    started_ms: int | None = None
    after_input: bool = False
    per_record: bool = False
    read: dict[int, int] = field(default_factory=dict)
    transaction_timeout_s: float = 300.0
    delivery_timeout_s: float = 60.0

    def output(self, dest: int) -> OutputTopic:
        """Return one of the topics for outputs.

        Raises:
            ConfigError: The spec has no destination topic.
        """
        if not self.outputs:
            msg = f"{self.slice}: there are outputs but no destination topic"
            raise ConfigError(msg)
        return self.outputs[dest]

    @property
    def shown_topics(self) -> str:
        """The topics for outputs, for messages."""
        return ", ".join(repr(output.name) for output in self.outputs)

    @property
    def compression(self) -> str:
        """Compression of output batches: ``none``, or another value of ``compression.type``."""
        return str(self.producer.get("compression.type", "none"))

    @property
    def record_limits(self) -> list[int]:
        """The maximum record sizes of the topics that this task writes to, bytes."""
        dead_letter_limits = [context.max_record_bytes for context in self.dead_letters if context is not None]
        return [*(output.limits.max_message_bytes for output in self.outputs), *dead_letter_limits]


@dataclass(frozen=True)
class FaultSample:
    """One failed record: its coordinates, its fault and the action for it."""

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
    """One written record, truncated for display."""

    key: str | None
    value: str | None
    topic: str | None = None


def first_of_topics(rows: Iterable[PreviewRow], count: int) -> list[PreviewRow]:
    """Return the first ``count`` written records of each topic."""
    kept: list[PreviewRow] = []
    seen: dict[str | None, int] = {}
    for row in rows:
        seen[row.topic] = seen.get(row.topic, 0) + 1
        if seen[row.topic] <= count:
            kept.append(row)
    return kept


def sum_by_topic(one: Mapping[str, int] | None, other: Mapping[str, int] | None) -> dict[str, int] | None:
    """Add numbers of records by topic; None if one of them is unknown."""
    if one is None or other is None:
        return None
    return {topic: one.get(topic, 0) + other.get(topic, 0) for topic in dict.fromkeys([*one, *other])}


@dataclass
class Outcome:
    """The result of one writer task.

    Args:
        status: ``committed``; ``committed_earlier`` (an earlier attempt committed this slice); ``written`` (all
            records acknowledged, no offsets committed); ``faults`` (records failed, and the action is to stop);
            ``rejected`` (the destination rejects the records in ``rejected``, and this pass could not dead-letter
            them); ``broker_rejected`` (the brokers refused a batch, and a probe must find the refused records);
            ``disordered`` (the rows did not arrive in offset order); ``over_limit`` (more records failed than the
            limit allows); ``counted`` (nothing was sent); ``stopped`` (a lane did not commit); ``error``.
        counts: Record counts by index of the range in the slice.
        faults: Number of failed records.
        samples: The first failed records.
        reasons: Number of skipped and dead-lettered records by reason.
        rules: Counts of each rule, by name.
        rejected: Records that the destination rejects and that this pass did not dead-letter, with the reason.
        preview: The first written records of each topic.
        written: Number of written records by topic; None if it is unknown, because an earlier attempt wrote them.
        error: The error, with status ``error``.
        steps_s: Duration of each step (``open``, ``write``, ``commit``), seconds.
    """

    status: str
    counts: dict[int, SliceCounts] = field(default_factory=dict)
    faults: int = 0
    samples: list[FaultSample] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    rules: dict[str, RuleCount] = field(default_factory=dict)
    rejected: dict[Rejected, Fault] = field(default_factory=dict)
    preview: list[PreviewRow] = field(default_factory=list)
    written: dict[str, int] | None = None
    error: KpipeError | None = None
    steps_s: dict[str, float] = field(default_factory=dict)

    @property
    def failure(self) -> KpipeError | None:
        """The error, with the part of the pipeline that failed (default ``destination``); None if there is no error."""
        if self.error is not None:
            self.error.part = self.error.part or "destination"
        return self.error

    def raise_error(self) -> None:
        """Raise the error, if there is one."""
        failure = self.failure
        if failure is not None:
            raise failure

    @property
    def total(self) -> SliceCounts:
        """The sum of the counts of all ranges."""
        return sum(self.counts.values(), SliceCounts())
