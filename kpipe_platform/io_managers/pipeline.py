"""One slice through the house: plan, read, decode, stage, write, commit, report.

Nothing here knows Dagster's contexts; the IO managers do.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kpipe_platform.codecs import Codec, RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.deadletter import DeadLetterContext, Distribution
from kpipe_platform.errors import ConfigError, DeadLetterError, TopicNotFoundError
from kpipe_platform.io_managers.current import storing
from kpipe_platform.io_managers.step import Step
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.commit_metadata import SliceCounts
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.kafka.topics import TopicLimits, TopicSpec, create_topic, describe_topics, topic_limits
from kpipe_platform.kafka.transactions import SliceTransaction, store_offsets
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.resources.destination import KafkaDeadLetterDestination, KafkaDestination
from kpipe_platform.resources.scaling import PartitionScaling
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.resources.spark import SparkEngine
from kpipe_platform.spark.checks import check_output_schema, columns_of
from kpipe_platform.spark.failures import classify, is_sparks
from kpipe_platform.spark.reader import SliceFrames, TopicCodecs, read_slice
from kpipe_platform.spark.writer import output_rows, write_slice
from kpipe_platform.spark.writer_spec import FaultSample, Outcome, PreviewRow, WriterSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SliceReport:
    """What became of one slice.

    Args:
        slice: The plan.
        counts: Counted records by range.
        counted_output: False where another IO manager stored the output and nobody counted it.
        reasons: Dead letters and skipped records by reason.
        samples: The first of them.
        preview: The first written records.
        columns: Name and type of each column of the stage's output.
        steps_s: Seconds by step.
        duration_s: Seconds of the whole slice.
    """

    slice: Slice
    counts: Sequence[SliceCounts]
    counted_output: bool = True
    reasons: Mapping[str, int] = field(default_factory=dict)
    samples: Sequence[FaultSample] = ()
    preview: Sequence[PreviewRow] = ()
    columns: Sequence[tuple[str, str]] = ()
    steps_s: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = 0.0

    @property
    def total(self) -> SliceCounts:
        """The counts of all ranges together."""
        return sum(self.counts, SliceCounts())

    @property
    def lag(self) -> int:
        """Offsets that waited behind the slice when it was planned."""
        return sum(planned.backlog for planned in self.slice.ranges)


@dataclass(frozen=True)
class Target:
    """Where outputs and dead letters of a step go, checked before any work.

    Args:
        topic: Destination topic; None where another IO manager stores the output.
        limits: What the destination topic takes.
        dead_letter_topics: Dead-letter topic and its limits, by source topic; empty where the action needs none.
    """

    topic: KafkaTopic | None
    limits: TopicLimits
    dead_letter_topics: Mapping[str, tuple[str, TopicLimits]]


@dataclass(frozen=True)
class Pipeline:
    """The resources of one Kafka-reading step.

    Args:
        step: The step.
        source: Plans and reads.
        engine: Spark.
        destination: Writes outputs; None where no output goes to Kafka.
        dead_letter: Takes records that failed; None where there is no such destination.
        action: What happens to a record that fails.
        scaling: Bounds of a slice and of a range run.
    """

    step: Step
    source: KafkaSource
    engine: SparkEngine
    destination: KafkaDestination | None
    dead_letter: KafkaDeadLetterDestination | None
    action: FaultAction
    scaling: PartitionScaling

    # Before work

    def target(self, clients: Clients, sources: Iterable[KafkaTopic], topic: KafkaTopic | None) -> Target:
        """Check, and create where declared, the topics that the step writes.

        Raises:
            ConfigError: A resource is missing, or the clusters differ where one transaction must span them.
            TopicNotFoundError: The destination topic does not exist and is not declared to be created.
            DeadLetterError: A dead-letter topic does not exist.
        """
        self._check_resources(topic)
        names = [source.name for source in sources]
        writing = self._writing_clients(clients)
        try:
            if topic is not None:
                _ensure(writing, topic.name, topic.create)
            letters = self._dead_letter_topics(clients, writing, names)
            limits = topic_limits(writing, [*([topic.name] if topic else []), *letters.values()])
        finally:
            if writing is not clients:
                writing.close()
        return Target(
            topic,
            limits[topic.name] if topic else TopicLimits(),
            {source: (letter, limits[letter]) for source, letter in letters.items()},
        )

    def _writing_clients(self, clients: Clients) -> Clients:
        where = self.destination or self.dead_letter
        if where is None or where.connection.settings == clients.settings:
            return clients
        return Clients(where.connection.settings)

    def _check_resources(self, topic: KafkaTopic | None) -> None:
        asset = self.step.asset_key.to_user_string()
        if topic is not None and self.destination is None:
            msg = f"asset {asset} writes topic {topic.name!r}, but its KafkaIOManager has no destination"
            raise ConfigError(msg, fix="KafkaIOManager(destination=KafkaDestination(...), ...)")
        if self.action is FaultAction.DEAD_LETTER and self.dead_letter is None:
            msg = f"asset {asset} dead-letters failed records, but its IO manager has no dead-letter destination"
            raise ConfigError(msg, fix="KafkaIOManager(dead_letter=KafkaDeadLetterDestination(...), ...)")
        if topic is None or self.destination is None:
            return
        writes = self.destination.connection.settings
        if self.destination.delivery == "exactly_once" and writes != self.source.connection.settings:
            msg = f"asset {asset}: exactly once needs source and destination on one cluster and one connection"
            raise ConfigError(
                msg, fix='use one KafkaConnection for both, or KafkaDestination(delivery="at_least_once")'
            )
        if self.dead_letter is not None and self.dead_letter.connection.settings != writes:
            msg = f"asset {asset}: dead letters are written by the destination's producer, on its cluster"
            raise ConfigError(msg, fix="give KafkaDeadLetterDestination the destination's KafkaConnection")

    def _dead_letter_topics(self, clients: Clients, writing: Clients, sources: list[str]) -> dict[str, str]:
        if self.action is not FaultAction.DEAD_LETTER or self.dead_letter is None:
            return {}
        letters = {source: self.dead_letter.topic_for(source) for source in sources}
        for source, letter in letters.items():
            spec = None
            if self.dead_letter.create_topic:
                spec = TopicSpec(describe_topics(clients, [source])[source].partitions)
            try:
                _ensure(writing, letter, spec)
            except TopicNotFoundError as error:
                msg = f"the dead-letter topic {letter!r} of topic {source!r} does not exist"
                raise DeadLetterError(
                    msg,
                    fix=f"kpipe topics create {letter}, or KafkaDeadLetterDestination(create_topic=True)",
                    topic=letter,
                ) from error
        return letters

    # Plan and read

    def plan(self, clients: Clients, topics: Iterable[KafkaTopic], numbers: Iterable[int] | None) -> Slice:
        """Plan the next slice over the given Kafka partitions of each topic; None: over all of them.

        Raises:
            KpipeError: One of the plan's refusals.
        """
        partitions = []
        for topic in topics:
            topic.require_readable()
            wanted = numbers
            if wanted is None:
                wanted = range(describe_topics(clients, [topic.name])[topic.name].partitions)
            partitions += [(topic.name, number) for number in wanted]
        return self.source.plan(
            self.step.group,
            partitions,
            run_id=self.step.run_id,
            slice_id=uuid.uuid4().hex[:16],
            earlier=self.step.earlier,
            scaling=self.scaling,
            clients=clients,
        )

    def read(self, slice_: Slice, topic: KafkaTopic) -> SliceFrames:
        """Read and decode one topic's part of a slice, lazily.

        Raises:
            KpipeError: The session cannot be had, or lacks the Kafka connector.
        """
        try:
            return read_slice(
                self.engine.spark_session,
                self.source.connection.settings,
                slice_,
                TopicCodecs(topic.key_codec, topic.value),
                topic=topic.name,
                isolation=self.source.isolation,
                parallelism=self.engine.settings.tasks_at_once,
            )
        except Exception as error:
            if is_sparks(error):
                raise classify(error, str(slice_)) from error
            raise

    # Write

    def store_start(self, slice_: Slice) -> SliceReport:
        """An empty slice: a success without a Spark job. Where the group is new, its start is stored.

        Without that, a group that starts at the latest record would begin anew with every run and lose what came in
        between.
        """
        began = time.monotonic()
        counts = [SliceCounts() for _ in slice_.ranges]
        if slice_.moves_offsets:
            with self._transaction(slice_) as transaction:
                transaction.open()
                store_offsets(transaction, counts)
        return SliceReport(slice_, counts, duration_s=time.monotonic() - began)

    def write(
        self,
        slice_: Slice,
        reads: Mapping[str, tuple[KafkaTopic, SliceFrames]],
        output: DataFrame,
        target: Target,
        *,
        codec: Codec | None = None,
    ) -> SliceReport:
        """Write a slice's output and dead letters to Kafka and move its offsets.

        Args:
            slice_: The plan.
            reads: The slice's sources by input name.
            output: What the stage returned.
            target: Where it goes.
            codec: Codec of the output's values; None: the destination topic's.

        Raises:
            KpipeError: Anything that went wrong; offsets are unmoved.
        """
        if target.topic is None or self.destination is None:
            msg = f"asset {self.step.asset_key.to_user_string()} has no Kafka destination"
            raise ConfigError(msg, fix="KafkaIOManager(destination=KafkaDestination(...), ...)")
        began = time.monotonic()
        topic = target.topic
        codec = codec or topic.value
        check_output_schema(output, codec, topic.name)
        rows = output_rows(output, slice_, codec, key=topic.key, timestamp=topic.timestamp)
        frames = [frames for _, frames in reads.values()]
        spec = self._spec(slice_, {t.name: t for t, _ in reads.values()}, target)
        if self.destination.delivery == "exactly_once":
            outcome = write_slice(rows, frames, spec)
            counts: Sequence[SliceCounts] = _by_range(outcome, slice_)
        else:
            outcome, counts = self._write_at_least_once(slice_, frames, spec, lambda: write_slice(rows, frames, spec))
        return _report(slice_, outcome, counts, output, began)

    def store_elsewhere(
        self,
        slice_: Slice,
        reads: Mapping[str, tuple[KafkaTopic, SliceFrames]],
        output: Any,
        target: Target,
        store: Callable[[Any], None],
    ) -> SliceReport:
        """Let another store take a slice's output, write its dead letters, then move its offsets.

        Args:
            slice_: The plan.
            reads: The slice's sources by input name.
            output: What the stage returned.
            target: Where dead letters go.
            store: Stores the output.

        Raises:
            Exception: Whatever ``store`` raises; offsets are unmoved.
        """
        began = time.monotonic()
        frames = [frames for _, frames in reads.values()]
        spec = replace(self._spec(slice_, {t.name: t for t, _ in reads.values()}, target), mode="idempotent")

        def work() -> Outcome:
            started = time.monotonic()
            with storing(slice_):
                store(output)
            stored_s = time.monotonic() - started
            outcome = write_slice(None, frames, spec)
            return replace(outcome, steps_s={**outcome.steps_s, "store": stored_s})

        outcome, counts = self._write_at_least_once(slice_, frames, spec, work)
        return replace(_report(slice_, outcome, counts, output, began), counted_output=False)

    def _write_at_least_once(
        self, slice_: Slice, frames: list[SliceFrames], spec: WriterSpec, work: Callable[[], Outcome]
    ) -> tuple[Outcome, Sequence[SliceCounts]]:
        # The id is held from here on, so that a later run fences this one's commit too.
        with self._transaction(slice_) as transaction:
            began = time.monotonic()
            transaction.open()
            earlier = transaction.committed_earlier()
            opened_s = time.monotonic() - began
            if earlier is not None:
                return Outcome("committed_earlier"), earlier
            if spec.action in (FaultAction.STOP, FaultAction.RETHROW) and any(f.can_fault for f in frames):
                # Parallel writers cannot take back what they wrote: look for faults first.
                write_slice(None, frames, replace(spec, topic=None))
            outcome = work()
            began = time.monotonic()
            counts = store_offsets(transaction, _by_range(outcome, slice_))
            steps = {**outcome.steps_s, "open": opened_s, "commit": time.monotonic() - began}
            return replace(outcome, steps_s=steps), counts

    def _transaction(self, slice_: Slice) -> SliceTransaction:
        timeout_s = self.destination.transaction_timeout_s if self.destination else 300.0
        return SliceTransaction(self.source.connection.settings, slice_, timeout_s=timeout_s)

    def _spec(self, slice_: Slice, topics: Mapping[str, KafkaTopic], target: Target) -> WriterSpec:
        destination = self.destination
        where = destination or self.dead_letter
        codecs: list[tuple[Codec, Codec]] = []
        for planned in slice_.ranges:
            topic = topics.get(planned.range.topic)
            codecs.append((topic.key_codec, topic.value) if topic else (RawCodec(), RawCodec()))
        spec = WriterSpec(
            settings=(where or self.source).connection.settings,
            source_settings=self.source.connection.settings,
            slice=slice_,
            mode="transactional",
            topic=target.topic.name if target.topic else None,
            limits=target.limits,
            dead_letters=tuple(self._dead_letter_context(p.range, target) for p in slice_.ranges),
            action=self.action,
            codecs=tuple(codecs),
            isolation=self.source.isolation,
        )
        if destination is None:
            return spec
        return replace(
            spec,
            mode="transactional" if destination.delivery == "exactly_once" else "idempotent",
            stamp_source=destination.stamp_source,
            preview_rows=destination.preview_rows,
            producer={"compression.type": destination.compression, **destination.producer},
            transaction_timeout_s=destination.transaction_timeout_s,
            delivery_timeout_s=min(destination.delivery_timeout_s, destination.transaction_timeout_s),
        )

    def _dead_letter_context(self, source: OffsetRange, target: Target) -> DeadLetterContext | None:
        found = target.dead_letter_topics.get(source.topic)
        if found is None or self.dead_letter is None:
            return None
        topic, limits = found
        step = self.step
        return DeadLetterContext(
            topic=topic,
            form=self.dead_letter.form,
            max_record_bytes=limits.max_message_bytes,
            asset=step.asset_key.to_user_string(),
            run_id=step.run_id,
            attempt=step.attempt,
            group=step.group,
            distribution=Distribution.here(group=step.group),
        )


def _ensure(clients: Clients, name: str, spec: TopicSpec | None) -> None:
    try:
        describe_topics(clients, [name])
    except TopicNotFoundError:
        if spec is None:
            raise
        create_topic(clients, name, spec)


def _by_range(outcome: Outcome, slice_: Slice) -> list[SliceCounts]:
    return [outcome.counts.get(index, SliceCounts()) for index in range(max(len(slice_.ranges), 1))]


def _report(slice_: Slice, outcome: Outcome, counts: Sequence[SliceCounts], output: Any, began: float) -> SliceReport:
    return SliceReport(
        slice=slice_,
        counts=counts,
        reasons=outcome.reasons,
        samples=outcome.samples,
        preview=outcome.preview,
        columns=columns_of(output),
        steps_s=outcome.steps_s,
        duration_s=time.monotonic() - began,
    )
