"""One slice through the house: plan, read, decode, stage, write, commit, report.

Nothing here knows Dagster's contexts; the IO managers do.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kpipe_platform.codecs import Codec, JsonCodec, RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.deadletter import DeadLetterContext, Distribution
from kpipe_platform.errors import CommitUnknownError, ConfigError, EngineUnavailableError, KpipeError
from kpipe_platform.io_managers.current import storing
from kpipe_platform.io_managers.interruption import Interruptible
from kpipe_platform.io_managers.staged import LanesReport, SliceReport, Staged
from kpipe_platform.io_managers.step import Step
from kpipe_platform.io_managers.target import Target
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.commit_metadata import SliceCounts
from kpipe_platform.kafka.groups import committed_offsets
from kpipe_platform.kafka.lanes import lanes_read_back
from kpipe_platform.kafka.offsets import OffsetRange, Partition
from kpipe_platform.kafka.settings import ConnectionSettings
from kpipe_platform.kafka.slices import PlannedRange, Slice
from kpipe_platform.kafka.topics import describe_topics
from kpipe_platform.kafka.transactions import SliceTransaction, read_back, store_offsets
from kpipe_platform.partitions.owners import distribution_of, headers_of
from kpipe_platform.policies.components import FaultPolicies
from kpipe_platform.policies.limits import DeadLetterLimit
from kpipe_platform.resources.destination import KafkaDeadLetterDestination, KafkaDestination
from kpipe_platform.resources.scaling import PartitionScaling
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.resources.spark import SparkEngine
from kpipe_platform.slices.plan.ranges import LastMaterialization
from kpipe_platform.spark.checks import check_output_schema, columns_of
from kpipe_platform.spark.convert import is_records, to_frame
from kpipe_platform.spark.failures import classify, is_sparks
from kpipe_platform.spark.frames import SliceFrames, TopicCodecs
from kpipe_platform.spark.lanes import LaneRows, LanesOutcome, write_lanes
from kpipe_platform.spark.reader import read_slice
from kpipe_platform.spark.stage_notes import StageNotes
from kpipe_platform.spark.whole_records import of_whole_records
from kpipe_platform.spark.writer import evaluate, write_slice
from kpipe_platform.spark.writer_rows import WriterRows, output_rows
from kpipe_platform.spark.writer_spec import DEFAULT_COMPRESSION, Outcome, WriterSpec

logger = logging.getLogger(__name__)

# After these a slice may be committed: its commit got no answer, or Spark did not bring the writer's.
_UNANSWERED = (CommitUnknownError, EngineUnavailableError)

# Offsets below which another lane costs more than it saves: a task and a transaction, about 100 ms.
_OFFSETS_A_LANE = 1_000


@dataclass(frozen=True)
class Pipeline:
    """The resources of one Kafka-reading step.

    Args:
        step: The step.
        source: Plans and reads.
        engine: Spark.
        destination: Writes outputs; None where no output goes to Kafka.
        dead_letter: Takes records that failed; None where there is no such destination.
        policies: What happens to a record that fails, and what is tried again.
        limit: The largest share of failed records in a slice.
        scaling: Bounds of a slice and of a range run.
    """

    step: Step
    source: KafkaSource
    engine: SparkEngine
    destination: KafkaDestination | None
    dead_letter: KafkaDeadLetterDestination | None
    policies: FaultPolicies
    limit: DeadLetterLimit
    scaling: PartitionScaling

    @property
    def distribution(self) -> Distribution:
        """Which deployment and which process do this work."""
        return distribution_of(self.step.tags, self.step.group, self.source.ownership)

    def interruptible(self) -> Interruptible:
        """Runs the step's work so that a terminated run leaves nothing behind."""
        return Interruptible(lambda: self.engine.spark_session, self.source.connection.settings)

    @property
    def hides_messages(self) -> bool:
        """Whether faults are shown without their messages: a redaction hook decides what may be kept of them."""
        return self.dead_letter is not None and self.dead_letter.redact is not None

    # Plan and read

    def plan(
        self,
        clients: Clients,
        topics: Iterable[KafkaTopic],
        numbers: Iterable[int] | None,
        *,
        earlier: Callable[[Partition], LastMaterialization | None] | None = None,
    ) -> Slice:
        """Plan the next slice over the given Kafka partitions of each topic; None: over all of them.

        Args:
            clients: Clients of the source's cluster.
            topics: The topics.
            numbers: Kafka partitions.
            earlier: Where a partition was left, for a group without an offset; None: what Dagster holds.

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
            earlier=earlier or self.step.earlier,
            scaling=self.scaling,
            clients=clients,
        )

    def read(self, slice_: Slice, topic: KafkaTopic, *, by_client: bool = False) -> SliceFrames:
        """Read and decode one topic's part of a slice, lazily.

        Args:
            slice_: The slice.
            topic: The topic.
            by_client: Read by kpipe's own client, because Spark's source fails on a record's timestamp.

        Raises:
            KpipeError: The session cannot be had, or lacks the Kafka connector.
        """
        tasks = self.engine.tasks_at_once
        destination = self.destination
        if destination is not None and destination.delivery == "at_least_once":
            # Writers that work on parts of one partition at the same time would not keep its order.
            tasks = min(tasks, len(slice_.ranges) * self.scaling.in_flight_per_partition)
        try:
            return read_slice(
                self.engine.spark_session,
                self.source.connection.settings,
                slice_,
                TopicCodecs(topic.key_codec, topic.value),
                topic=topic.name,
                isolation=self.source.isolation,
                parallelism=max(tasks // slice_.lanes, 1),
                by_client=by_client,
            )
        except Exception as error:
            if is_sparks(error):
                raise classify(error, str(slice_)) from error
            raise

    # Write

    def store_start(self, slice_: Slice) -> SliceReport:
        """An empty slice: a success without a Spark job. Where the group is new, its start is stored.

        Without that, a group that starts at the latest record would begin anew with every run and lose what came in
        between. An offset that is old is stored again, before the brokers forget it.
        """
        began = time.monotonic()
        counts = [SliceCounts() for _ in slice_.ranges]
        if slice_.moves_offsets:
            try:
                with self._transaction(slice_) as transaction:
                    transaction.open()
                    store_offsets(transaction, counts)
            except CommitUnknownError as error:
                self._account_for(slice_, error, self.source.connection.settings)
        return SliceReport(slice_, counts, duration_s=time.monotonic() - began)

    def write(self, staged: Staged, target: Target, codec: Codec | None = None) -> SliceReport:
        """Write a slice's output and dead letters to Kafka and move its offsets.

        Args:
            staged: The slice with its stage's output.
            target: Where it goes.
            codec: Codec of the output's values; None: the destination topic's.

        Raises:
            KpipeError: Anything that went wrong; offsets are unmoved.
        """
        if target.topic is None or self.destination is None:
            msg = f"asset {self.step.asset_key.to_user_string()} has no Kafka destination"
            raise ConfigError(msg, fix="KafkaIOManager(destination=KafkaDestination(...), ...)")
        began = time.monotonic()
        if self.destination.delivery == "at_least_once":
            staged = replace(staged, output=of_whole_records(staged.output, staged.notes))
        rows = self._rows(staged, target.topic, codec or target.topic.value, source=_alone(staged))
        spec = self._spec(staged, target)
        if self.destination.delivery == "exactly_once":
            try:
                outcome = write_slice(rows, staged.frames, spec, staged.notes)
                counts: Sequence[SliceCounts] = _by_range(outcome, staged.slice)
            except _UNANSWERED as error:
                outcome = Outcome("committed_earlier")
                counts = self._account_for(staged.slice, error, spec.settings)
        else:
            outcome, counts = self._write_at_least_once(
                staged, spec, lambda: write_slice(rows, staged.frames, spec, staged.notes)
            )
        return _report(staged, outcome, counts, began)

    def lanes_of(self, slice_: Slice) -> int:
        """In how many lanes a slice is to be written at the same time; 1: in one transaction.

        Raises:
            ConfigError: It is not known how many tasks the engine runs at once.
        """
        wanted = self.scaling.in_flight_per_partition
        if wanted == 1 or self.destination is None or self.destination.delivery != "exactly_once":
            return 1
        tasks = self.engine.known_tasks_at_once
        if tasks is None:
            msg = f"asset {self.step.asset_key.to_user_string()} writes parts of a slice at the same time, and it is "
            msg += "not known how many tasks the engine runs at once"
            raise ConfigError(msg, fix="SparkEngine(parallelism=...): the cores of its executors")
        return max(min(wanted, tasks, slice_.span // _OFFSETS_A_LANE), 1)

    def write_lanes(self, whole: Slice, lanes: Sequence[Staged], target: Target) -> LanesReport:
        """Write the lanes of a slice at the same time, each with its dead letters and offsets in a transaction.

        Args:
            whole: The slice.
            lanes: Its lanes, each with its stage's output.
            target: Where it goes.

        Raises:
            KpipeError: The lanes could not be run; offsets are unmoved.
        """
        topic = target.topic
        if topic is None:
            msg = f"asset {self.step.asset_key.to_user_string()} has no Kafka destination"
            raise ConfigError(msg, fix="KafkaIOManager(destination=KafkaDestination(...), ...)")
        began = time.monotonic()
        rows = []
        for lane in lanes:
            framed, where, codec = encoded(self, lane, target)
            output = self._rows(framed, where.topic or topic, codec or topic.value)
            rows.append(LaneRows(output, framed.frames, framed.notes, self._spec(framed, where)))
        try:
            found = write_lanes(whole, rows)
        except _UNANSWERED as error:
            found = LanesOutcome(0, None, error)
        if isinstance(found.error, _UNANSWERED):
            found = _account_for_lanes([row.spec for row in rows], found)
        report = None
        if found.outcome is not None:
            ends = [planned.range.end for planned in lanes[found.done - 1].slice.ranges]
            part = replace(whole, ranges=tuple(map(_until, whole.ranges, ends)))
            notes = StageNotes.joined(lane.notes for lane in lanes[: found.done])
            done = replace(lanes[0], slice=part, notes=notes)
            report = _report(done, found.outcome, _by_range(found.outcome, whole), began)
            report = replace(report, lanes=len(lanes))
        rest = None if found.done == len(lanes) else self._rest(whole, lanes[found.done].slice)
        return LanesReport(report, rest, found.error)

    def _rest(self, whole: Slice, lane: Slice) -> Slice:
        """What is left of a slice from one of its lanes on."""
        committed = [planned.committed for planned in lane.ranges]
        if None in committed:
            # A new group: the lane that stopped may have stored where it begins.
            places = [(p.range.topic, p.range.partition) for p in lane.ranges]
            with self.source.clients() as clients:
                found = committed_offsets(clients, whole.group, places)
            committed = [None if (f := found[place]) is None else f.offset for place in places]
        return whole.rest([planned.range.start for planned in lane.ranges], committed)

    def try_out(self, staged: Staged, target: Target, codec: Codec | None = None) -> None:
        """Run a slice's stage to its end and write nothing, to see whether it fails.

        Raises:
            StageFailedError: It does.
        """
        rows = None if target.topic is None else self._rows(staged, target.topic, codec or target.topic.value)
        evaluate(staged.output if rows is None else rows.frame, str(staged.slice))

    @staticmethod
    def _rows(
        staged: Staged, topic: KafkaTopic, codec: Codec, *, source: SliceFrames | None = None
    ) -> WriterRows | None:
        if staged.output is None:
            return None
        check_output_schema(staged.output, codec, topic.name)
        return output_rows(staged.output, staged.slice, codec, key=topic.key, timestamp=topic.timestamp, source=source)

    def store_elsewhere(self, staged: Staged, target: Target, store: Callable[[Any], None]) -> SliceReport:
        """Let another store take a slice's output, write its dead letters, then move its offsets.

        Args:
            staged: The slice with its stage's output.
            target: Where dead letters go.
            store: Stores the output.

        Raises:
            Exception: Whatever ``store`` raises; offsets are unmoved.
        """
        began = time.monotonic()
        spec = replace(self._spec(staged, target), mode="idempotent")
        for frames in staged.frames:
            # For the store's output and for the counts.
            frames.keep()

        def work() -> Outcome:
            started = time.monotonic()
            with storing(staged.slice):
                store(of_whole_records(staged.output, staged.notes))
            stored_s = time.monotonic() - started
            outcome = write_slice(None, staged.frames, spec, staged.notes)
            return replace(outcome, steps_s={**outcome.steps_s, "store": stored_s})

        outcome, counts = self._write_at_least_once(staged, spec, work)
        return replace(_report(staged, outcome, counts, began), counted_output=False)

    def _write_at_least_once(
        self, staged: Staged, spec: WriterSpec, work: Callable[[], Outcome]
    ) -> tuple[Outcome, Sequence[SliceCounts]]:
        outcome = Outcome("committed_earlier")
        try:
            # The id is held from here on, so that a later run fences this one's commit too.
            with self._transaction(staged.slice) as transaction:
                began = time.monotonic()
                transaction.open()
                earlier = transaction.committed_earlier()
                opened_s = time.monotonic() - began
                if earlier is not None:
                    return outcome, earlier
                can_fault = bool(staged.notes.faults) or any(frames.can_fault for frames in staged.frames)
                if can_fault and (spec.policies.may_stop or staged.notes.faults or spec.limit.ratio is not None):
                    # Parallel writers cannot take back what they wrote: look for what would stop the run first.
                    write_slice(None, staged.frames, replace(spec, mode="count", topic=None), staged.notes)
                outcome = work()
                began = time.monotonic()
                counts = store_offsets(transaction, _by_range(outcome, staged.slice))
                steps = {**outcome.steps_s, "open": opened_s, "commit": time.monotonic() - began}
                return replace(outcome, steps_s=steps), counts
        except CommitUnknownError as error:
            return outcome, self._account_for(staged.slice, error, self.source.connection.settings)

    def _transaction(self, slice_: Slice) -> SliceTransaction:
        return SliceTransaction(self.source.connection.settings, slice_, timeout_s=self._transaction_timeout_s)

    @property
    def _transaction_timeout_s(self) -> float:
        return self.destination.transaction_timeout_s if self.destination else 300.0

    def _account_for(self, slice_: Slice, error: KpipeError, settings: ConnectionSettings) -> Sequence[SliceCounts]:
        """The counts of a slice that is committed though its writer failed.

        Raises:
            KpipeError: The error, where nothing is committed or that is not known.
        """
        try:
            counts = read_back(settings, slice_, timeout_s=self._transaction_timeout_s)
        except KpipeError as other:
            logger.warning("%s: whether it is committed is not known: %s", slice_, other)
            raise error from other
        if counts is None:
            raise error
        logger.warning("%s is committed, as the group's offset says, though its writer ended without an answer", slice_)
        return counts

    def _spec(self, staged: Staged, target: Target) -> WriterSpec:
        slice_ = staged.slice
        topics = {topic.name: topic for topic, _ in staged.reads.values()}
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
            dead_letters=tuple(self._dead_letter_context(p.range, target, staged) for p in slice_.ranges),
            policies=self.policies,
            limit=self.limit,
            codecs=tuple(codecs),
            isolation=self.source.isolation,
            hide_messages=self.hides_messages,
        )
        if destination is None:
            return spec
        return replace(
            spec,
            mode="transactional" if destination.delivery == "exactly_once" else "idempotent",
            stamp_source=destination.stamp_source,
            stamps=headers_of(self.distribution),
            correlation_header=destination.correlation_header,
            preview_rows=destination.rows_to_preview(is_redacting=self.hides_messages),
            producer={"compression.type": destination.compression, **destination.producer},
            transaction_timeout_s=destination.transaction_timeout_s,
            delivery_timeout_s=min(destination.delivery_timeout_s, destination.transaction_timeout_s),
        )

    def _dead_letter_context(self, source: OffsetRange, target: Target, staged: Staged) -> DeadLetterContext | None:
        found = target.dead_letter_topics.get(source.topic)
        if found is None or self.dead_letter is None:
            return None
        topic, limits = found
        step = self.step
        compression = DEFAULT_COMPRESSION if self.destination is None else self.destination.compression
        return DeadLetterContext(
            topic=topic,
            form=self.dead_letter.form,
            header_families=self.dead_letter.header_families,
            oversized=self.dead_letter.oversized,
            correlation_header=self.dead_letter.correlation_header,
            redact=self.dead_letter.redact,
            max_record_bytes=limits.max_message_bytes,
            limits=limits,
            compression="none" if limits.uncompressed else compression,
            asset=step.asset_key.to_user_string(),
            run_id=step.run_id,
            attempt=step.attempt,
            group=step.group,
            distribution=self.distribution,
            segments=staged.segments,
            retries=staged.retries,
        )


def _account_for_lanes(lanes: Sequence[WriterSpec], found: LanesOutcome) -> LanesOutcome:
    """What became of lanes whose writers failed, as the group's offset says."""
    slices = [lane.slice for lane in lanes]
    try:
        done, counts = lanes_read_back(lanes[0].settings, slices)
    except KpipeError as other:
        logger.warning("%s: how many of its lanes are committed is not known: %s", slices[0], other)
        return found
    if done <= found.done:
        return found
    logger.warning("%d of %d lanes are committed, as the group's offset says: %s", done, len(lanes), slices[0])
    outcome = replace(found.outcome or Outcome("committed_earlier"), counts=dict(enumerate(counts)))
    return LanesOutcome(done, outcome, None if done == len(lanes) else found.error)


def _alone(staged: Staged) -> SliceFrames | None:
    """The source of a slice that may be written as it is made of each record; None where more is to be read of it."""
    if len(staged.frames) != 1 or staged.notes.faults or staged.notes.counts:
        return None
    (source,) = staged.frames
    return None if source.shared or source.cache.is_filled else source


def _until(planned: PlannedRange, end: int) -> PlannedRange:
    return replace(planned, range=replace(planned.range, end=end))


def _by_range(outcome: Outcome, slice_: Slice) -> list[SliceCounts]:
    return [outcome.counts.get(index, SliceCounts()) for index in range(max(len(slice_.ranges), 1))]


def _report(staged: Staged, outcome: Outcome, counts: Sequence[SliceCounts], began: float) -> SliceReport:
    return SliceReport(
        slice=staged.slice,
        counts=counts,
        reasons=outcome.reasons,
        samples=outcome.samples,
        rules=outcome.rules,
        preview=outcome.preview,
        columns=columns_of(staged.output) if staged.output is not None else (),
        steps_s=outcome.steps_s,
        duration_s=time.monotonic() - began,
        metadata=dict(staged.notes.metadata),
    )


def encoded(pipeline: Pipeline, staged: Staged, target: Target) -> tuple[Staged, Target, Codec | None]:
    """A stage's output as a DataFrame for the target's topic, with the codec of its values where it is another."""
    if target.topic is None:
        return staged, target, None
    read = [f for topic, _ in staged.reads.values() if isinstance(topic.value, JsonCodec) for f in topic.value.fields]
    frame = to_frame(pipeline.engine.spark_session, staged.output, target.topic.value, read)
    framed = replace(staged, output=frame)
    if not is_records(staged.output):
        return framed, target, None
    # Records carry their own key, timestamp and encoded value.
    return framed, replace(target, topic=replace(target.topic, key=None, timestamp=None)), RawCodec()
