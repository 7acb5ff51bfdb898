"""The writer: sends Arrow batches as Kafka records and waits for acknowledgements, in a Spark task's Python worker.

Kafka errors are not raised: Spark would retry the task and hide the reason in a stack trace. The writer returns one
outcome, and the driver decides.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException, Producer

from kpipe_platform.dead_letters import Segment
from kpipe_platform.errors import DeadLetterError, EngineUnavailableError, KpipeError
from kpipe_platform.kafka.client.calls import FENCED_CODES, REFUSED_CODES, not_delivered, translate
from kpipe_platform.kafka.client.clients import new_client
from kpipe_platform.kafka.client.producer import AckedProducer, GiveUpError
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.transactions.slice import SliceTransaction
from kpipe_platform.policies.actions import stops
from kpipe_platform.policies.faults import Component, Fault
from kpipe_platform.spark.sink.outcome_json import outcome_to_json
from kpipe_platform.spark.sink.spec import (
    DEFAULT_COMPRESSION,
    KIND_END,
    KIND_FAULT,
    KIND_NOTED,
    KIND_RULE,
    MISFIT_NOTE,
    NO_OUTPUT,
    Outcome,
    PreviewRow,
    Rejected,
    WriterSpec,
)
from kpipe_platform.spark.sink.task.faults import FaultRows
from kpipe_platform.spark.sink.task.outputs import OutputChecks, OutputRows, Row, by_range, by_topic
from kpipe_platform.spark.sink.task.refused import find_refused
from kpipe_platform.spark.stage.notes import RuleCount

OUTCOME_SCHEMA = "outcome string"
_ARROW_OUTCOME = pa.schema([("outcome", pa.string())])

# Enough for a whole JSON record of typical size, which the preview shows field by field.
_PREVIEW_CHARACTERS = 2_000
_BATCH_BYTES = 1_000_000
# Record size that librdkafka accepts before compression even if its topic's limit is lower, bytes. It is less than the
# queue size (128 MiB), because a record that does not fit into the queue would wait forever.
_UNCOMPRESSED_BYTES = 100_000_000


def run_writer(spec: WriterSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one slice, or a parallel part of it.

    Args:
        spec: The writer's instructions.
        batches: Rows of `kpipe_platform.spark.sink.rows`, in the order in which they are written.

    Yields:
        One row with the `Outcome` as JSON.
    """
    yield outcome_batch(outcome_of(spec, lambda: _run(spec, batches)))


def outcome_of(spec: WriterSpec, write: Callable[[], Outcome]) -> Outcome:
    """Run a write and return its outcome. Errors of kpipe and of the Kafka client become status ``error``."""
    try:
        return write()
    except KpipeError as error:
        return Outcome("error", error=error)
    except KafkaException as exception:
        return Outcome("error", error=translate(exception, spec.settings, f"write {spec.slice}", needs="Write"))


def outcome_batch(outcome: Outcome) -> pa.RecordBatch:
    """An outcome as a batch of one row, the writer's only output."""
    return pa.RecordBatch.from_pydict({"outcome": [outcome_to_json(outcome)]}, schema=_ARROW_OUTCOME)


def _run(spec: WriterSpec, batches: Iterable[pa.RecordBatch]) -> Outcome:
    task = WriterTask(spec)
    if spec.mode == "find_refused":
        return task.find_refused(batches)
    if spec.mode == "count":
        return task.count(batches)
    if spec.mode == "parallel":
        return task.write_parallel(batches)
    return task.write_transactional(batches)


class WriterTask:
    """The state of one writer task, with a method for each mode.

    Args:
        spec: The writer's instructions.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self.spec = spec
        self.outcome = Outcome("written", written={})
        self.checks = OutputChecks(spec)
        self.faults = FaultRows(spec)
        self.steps: dict[str, float] = {"open": 0.0, "write": 0.0, "commit": 0.0}
        self.written: Counter[int] = Counter()
        self.written_to: Counter[str] = Counter({output.name: 0 for output in spec.outputs})
        self.read: Counter[int] = Counter(spec.read)
        # Outputs that the destination rejects and this pass dead-letters.
        self.refused: dict[Rejected, Fault] = {}
        # Partitions of each destination topic, once an output requests a partition; None if the brokers do not report
        # it.
        self.partitions: dict[str, int | None] = {}
        self.ended = False
        self.last_order = -1

    def producer_settings(self) -> dict[str, Any]:
        """Properties of the librdkafka producer, adjusted to the topics' limits and the delivery guarantees."""
        limits = self.spec.record_limits
        # The brokers refuse a whole batch above the topic's limit, including its valid records, and librdkafka does not
        # split a batch. 512 bytes are reserved for the batch header.
        largest_batch = max(min([_BATCH_BYTES, *limits]) - 512, 1_024)
        return {
            "linger.ms": 20,
            "compression.type": DEFAULT_COMPRESSION,
            "queue.buffering.max.messages": 500_000,
            # 128 MiB. This bounds the worker's memory; the writer waits while the queue is full.
            "queue.buffering.max.kbytes": 131_072,
            # Compatible with the Java client's default partitioner: a key goes to the same partition.
            "partitioner": "murmur2_random",
            **self.spec.producer,
            "batch.size": min(int(self.spec.producer.get("batch.size", _BATCH_BYTES)), largest_batch),
            # librdkafka checks the size before compression, so this limit is generous. `OutputChecks` finds records
            # that are too large after compression.
            "message.max.bytes": min(max(*limits, _UNCOMPRESSED_BYTES), 1_000_000_000),
            "message.timeout.ms": int(self.spec.delivery_timeout_s * 1000),
            "delivery.report.only.error": True,
            "enable.idempotence": True,
        }

    # Modes

    def write_transactional(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Write all records and commit the offsets in one transaction."""
        spec = self.spec
        transaction = SliceTransaction(
            spec.settings,
            spec.slice,
            timeout_s=spec.transaction_timeout_s,
            producer_settings=self.producer_settings(),
        )
        if spec.after_input:
            batches = await_first(batches)
        with transaction, self.faults:
            with self.timed("open"):
                transaction.open()
                earlier = transaction.committed_earlier()
            if earlier is not None:
                return Outcome("committed_earlier", counts=dict(enumerate(earlier)))
            sink = AckedProducer(transaction.producer)
            try:
                self.consume(batches, sink, transaction)
                if self.stopped() or self._is_over_limit():
                    transaction.abort()
                    return self.finish(self.outcome.status)
                self.require_end()
                self.await_acks(sink, transaction)
                counts = self.counts()
                with self.timed("commit"):
                    transaction.commit(list(counts.values())[: len(spec.slice.ranges)])
            except GiveUpError:
                outcome = self.given_up(sink, transaction)
                transaction.abort()
                return outcome
            except DisorderError:
                transaction.abort()
                return self.finish("disordered")
            except KafkaException as exception:
                raise transaction.error(exception, "write outputs", needs="Write") from exception
        return self.finish("committed")

    def write_parallel(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Write all records without committing offsets."""
        spec = self.spec
        sink = AckedProducer(
            new_client(Producer, {**spec.settings.for_librdkafka(), **self.producer_settings()}, spec.settings)
        )
        with self.faults:
            try:
                self.consume(batches, sink, None)
                with self.timed("write"):
                    left = sink.flush(spec.delivery_timeout_s)
            except GiveUpError:
                return self.given_up(sink, None)
            except KafkaException as exception:
                raise translate(
                    exception, spec.settings, f"write outputs of {spec.slice}", needs="Write", topic=spec.shown_topics
                ) from exception
        if left:
            raise not_delivered(spec.settings, str(spec.slice), left)
        return self.finish(self.outcome.status if self.stopped() else "written")

    def count(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Report what would stop the run, without sending anything. Parallel writers cannot undo what they sent."""
        with self.faults:
            for batch in batches:
                self._note_segments()
                for row in split_batch(batch).others:
                    for _ in self._dead_letters(row):
                        pass
        return self.finish(self.outcome.status if self.stopped() or self._is_over_limit() else "counted")

    def find_refused(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Find all records that the brokers refuse. The records sent for this never become visible."""
        settings = self.spec.settings
        config = {
            **settings.for_librdkafka(),
            **self.producer_settings(),
            "transactional.id": self.spec.slice.probe_id,
        }
        producer = new_client(Producer, config, settings)
        try:
            producer.init_transactions(settings.request_timeout_s)
        except KafkaException as exception:
            raise translate(
                exception, settings, "find rejected records", transactional_id=self.spec.slice.probe_id
            ) from exception
        sink = AckedProducer(producer)
        for batch in batches:
            outputs, _, others = split_batch(batch)
            self.faults.handled.update(
                (a.note["src"], a.note["offset"]) for a in others if a.note["kind"] == KIND_NOTED
            )
            for rows in by_topic(self._of_whole_records(outputs), self.spec):
                # With at-least-once delivery, the previous pass did not report these. They are not probed, because a
                # record that cannot be sent gives no information about the others.
                self.outcome.rejected.update(self._rejected(rows, sink))
                known = {**self.spec.rejected, **self.outcome.rejected}
                suspects = [row for row in rows.rows() if row.identity not in known]
                topic = self.spec.output(rows.dest or 0).name
                refused = find_refused(producer, self.spec, topic, suspects, REFUSED_CODES)
                self.outcome.rejected.update({row.identity: fault for row, fault in refused})
        return self.finish("rejected" if self.outcome.rejected else "error")

    # Steps

    def _require_order(self, batch: pa.RecordBatch) -> None:
        """Check the order of rows that Spark did not sort. Only these have the column ``ord``.

        Raises:
            DisorderError: A row arrived after a row that it should precede.
        """
        if "ord" not in batch.schema.names or not batch.num_rows:
            return
        order = batch.column("ord")
        before = pa.concat_arrays([pa.array([self.last_order], order.type), order[:-1]])
        if not pc.all(pc.less_equal(before, order)).as_py():
            raise DisorderError
        self.last_order = order[-1].as_py()

    def require_end(self) -> None:
        """Refuse to commit unless the end row has arrived.

        Raises:
            EngineUnavailableError: Rows are missing. Usually Spark itself reports the failed task; this error covers
                the case in which it does not.
        """
        if not self.ended:
            msg = f"{self.spec.slice}: the writer's input ended early: the task that makes it failed or was killed"
            raise EngineUnavailableError(msg, fix="see the failure of that task in Spark's log; nothing was committed")

    def await_acks(self, sink: AckedProducer, transaction: SliceTransaction) -> None:
        """Wait until all records are acknowledged.

        Raises:
            GiveUpError: The brokers refused a record.
            BrokerUnavailableError: Some records were not acknowledged in time.
        """
        if not transaction.is_open:
            transaction.begin()
        with self.timed("write"):
            left = sink.flush(self.spec.delivery_timeout_s)
        if left:
            raise not_delivered(self.spec.settings, str(self.spec.slice), left)

    def consume(
        self, batches: Iterable[pa.RecordBatch], sink: AckedProducer, transaction: SliceTransaction | None
    ) -> None:
        """Send outputs and dead letters, and count records."""
        for batch in batches:
            self._require_order(batch)
            if self.ended:
                msg = f"{self.spec.slice}: rows arrived after the end row"
                raise EngineUnavailableError(
                    msg, fix="report this as a bug in kpipe: Spark changed the order of the rows"
                )
            began = time.monotonic()
            self._note_segments()
            outputs, without, others = split_batch(batch)
            if without is not None:
                self.read.update(by_range(without))
            for control in others:
                for topic, row in self._dead_letters(control):
                    if self.stopped():
                        continue
                    self._begin(transaction)
                    sink.send_all(topic, [row.message])
            if outputs.num_rows:
                self._write_outputs(outputs, sink, transaction)
            sink.poll()
            self.steps["write"] += time.monotonic() - began

    def _dead_letters(self, row: ControlRow) -> Iterator[tuple[str, Row]]:
        """Process a row that is not an output: count it, and make its dead letter if it needs one."""
        note = row.note
        kind = note["kind"]
        if kind == KIND_END:
            self.ended = True
        if "records" in note:
            self.read[note["src"]] += note["records"]
        if kind == KIND_RULE:
            count = RuleCount.from_json(note["note"])
            self.outcome.rules[count.rule] = count
        elif kind == KIND_FAULT:
            yield from self.faults.undecoded(note, row.key, row.value)
        elif kind == KIND_NOTED:
            yield from self.faults.noted(note)

    def _note_segments(self) -> None:
        """Record the durations for dead letters: from the start of the Spark job to the first row, then the write."""
        if not self.faults.segments:
            now = int(time.time() * 1000)
            started = self.spec.started_ms or now
            self.faults.segments = (Segment("run", started, max(now - started, 0)), Segment("write", now))

    def _write_outputs(self, part: pa.RecordBatch, sink: AckedProducer, transaction: SliceTransaction | None) -> None:
        spec = self.spec
        part = self._of_whole_records(part)
        if spec.per_record:
            self.read.update(by_range(part))
        topics = by_topic(part, spec)
        # Check the rows of all topics before any is sent: a record has all of its outputs or none.
        for rows in topics:
            self._note_refused(self._rejected(rows, sink))
        if self.stopped() and spec.mode == "transactional":
            return
        self._begin(transaction)
        for rows in topics:
            self._send(rows, sink)

    def _send(self, rows: OutputRows, sink: AckedProducer) -> None:
        topic = self.spec.output(rows.dest or 0).name
        if not (self.spec.rejected or self.refused or self.outcome.rejected):
            sink.send_all(topic, rows.messages())
            counted = by_range(rows.batch)
        else:
            kept = [row for row in rows.rows() if not self._is_rejected(row, sink)]
            sink.send_all(topic, (row.message for row in kept))
            counted = Counter(row.src or 0 for row in kept)
        self.written.update(counted)
        self.written_to[topic] += sum(counted.values())
        self._note_preview(rows)

    def _rejected(self, rows: OutputRows, sink: AckedProducer) -> dict[Rejected, Fault]:
        """The rows that the topic rejects, with the reason."""
        topic = self.spec.output(rows.dest or 0).name
        asked, known = rows.partitions, self.partitions.get(topic, 0)
        if asked is not None and known is not None and asked[1] >= known:
            # Request the partition count again if a row exceeds it, since a topic can grow during a write.
            known = self.partitions[topic] = sink.partitions(topic, self.spec.settings.request_timeout_s)
        return self.checks.rejected(rows, known)

    def _note_refused(self, refused: dict[Rejected, Fault]) -> None:
        """Dead-letter rejected outputs in this pass, or report them so that the driver decides on another pass.

        Either all outputs of a record are written or none. In a transaction some of them may have been sent already, so
        only another pass can exclude them. With at-least-once delivery they are already in the topic.
        """
        spec = self.spec
        together = spec.mode == "transactional" and not spec.per_record
        if stops(spec.policies.action(Component.DESTINATION)) or (
            together and any(isinstance(identity, tuple) for identity in refused)
        ):
            self.outcome.rejected.update(refused)
        else:
            self.refused.update(refused)

    def _of_whole_records(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """Remove all outputs of records that the stage set aside. The notes of these records arrive first."""
        handled = self.faults.handled
        if not handled or "src_offset" not in part.schema.names:
            return part
        src = part.column("src").to_pylist() if "src" in part.schema.names else repeat(0)
        places = zip(src, part.column("src_offset").to_pylist(), strict=False)
        return part.filter(pa.array([place not in handled for place in places], pa.bool_()))

    def _is_rejected(self, row: Row, sink: AckedProducer) -> bool:
        fault = self.spec.rejected.get(row.identity) or self.refused.get(row.identity)
        if fault is None:
            return row.identity in self.outcome.rejected
        for topic, dead_letter in self.faults.rejected_output(row, fault):
            sink.send_all(topic, [dead_letter.message])
        return True

    @staticmethod
    def _begin(transaction: SliceTransaction | None) -> None:
        if transaction is not None and not transaction.is_open:
            transaction.begin()

    def stopped(self) -> bool:
        """Whether another pass or an error must follow this one, because of a record. Sets the outcome's status."""
        if self.faults.stops:
            self.outcome.status = "faults"
            return True
        if self.outcome.rejected:
            self.outcome.status = "rejected"
            return True
        return False

    def _is_over_limit(self) -> bool:
        if not self.faults.is_over_limit(sum(self.read.values())):
            return False
        self.outcome.status = "over_limit"
        return True

    def given_up(self, sink: AckedProducer, transaction: SliceTransaction | None) -> Outcome:
        """Evaluate failed sends.

        Returns:
            Outcome ``broker_rejected`` if the brokers refused output records.

        Raises:
            DeadLetterError: The brokers refused a dead letter.
            KpipeError: The sends failed for another reason.
        """
        codes = {error.code() for error in sink.failures}
        dead_letter_topics = sink.failed_topics & {c.topic for c in self.spec.dead_letters if c is not None}
        only_dead_letters = bool(dead_letter_topics) and dead_letter_topics == sink.failed_topics
        if codes & REFUSED_CODES:
            if only_dead_letters:
                msg = f"{self.spec.slice}: the brokers reject a dead letter for topic {min(dead_letter_topics)!r}"
                raise DeadLetterError(
                    f"{msg}: {sink.failures[0].str()}", fix="check the settings of that topic; offsets did not move"
                )
            return self.finish("broker_rejected")
        # After a fatal error the queued records fail too, with a less specific code.
        error = next((e for e in sink.failures if e.code() in FENCED_CODES), sink.failures[0])
        what = f"write outputs to {', '.join(output.name for output in self.spec.outputs)}"
        if only_dead_letters:
            what = f"write dead letters to {min(dead_letter_topics)}"
        if transaction is None:
            typed = translate(
                error, self.spec.settings, f"{what} for {self.spec.slice}", needs="Write", topic=sink.failed_topic_names
            )
        else:
            typed = transaction.error(error, what, needs="Write", topic=sink.failed_topic_names)
        typed.part = "dead_letter" if only_dead_letters else "destination"
        raise typed

    # Results

    def _note_preview(self, rows: OutputRows) -> None:
        if rows.dest is None:
            return
        topic = self.spec.output(rows.dest).name
        missing = self.spec.preview_rows - sum(row.topic == topic for row in self.outcome.preview)
        if missing > 0:
            self.outcome.preview += [PreviewRow(_preview(k), _preview(v), topic) for k, v in rows.first(missing)]

    def counts(self) -> dict[int, SliceCounts]:
        """The counts so far, by index of the range."""
        return {
            src: SliceCounts(
                read=self.read[src],
                written=self.written[src],
                dead_lettered=self.faults.dead_lettered.get(src, 0),
                skipped=self.faults.skipped.get(src, 0),
            )
            # Outputs without a source are counted under 0, even if the slice has no range.
            for src in range(max(len(self.spec.slice.ranges), 1))
        }

    def finish(self, status: str) -> Outcome:
        """Complete the outcome with a status and all counts."""
        outcome = self.outcome
        outcome.status = status
        outcome.counts = self.counts()
        outcome.written = dict(self.written_to)
        outcome.faults = self.faults.seen
        outcome.samples = self.faults.samples
        outcome.reasons = self.faults.reasons
        outcome.steps_s = self.steps
        if status == "error":
            outcome.error = DeadLetterError("the brokers rejected a batch, but accept each of its records alone")
        return outcome

    def timed(self, step: str) -> _Timer:
        """Context manager that adds the duration of its block to a step."""
        return _Timer(self.steps, step)


class _Timer:
    def __init__(self, steps: dict[str, float], step: str) -> None:
        self._steps, self._step = steps, step

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._steps[self._step] += time.monotonic() - self._began


class DisorderError(Exception):
    """The rows did not arrive in the order in which they must be written."""


class ControlRow(NamedTuple):
    """A row that is not an output: its note, and the key and value of a record that does not decode."""

    note: dict[str, Any]
    key: bytes | None
    value: bytes | None


class Parts(NamedTuple):
    """The rows of a batch by kind: outputs, records without an output (None if there are none), and all others."""

    outputs: pa.RecordBatch
    without: pa.RecordBatch | None
    others: list[ControlRow]


def split_batch(batch: pa.RecordBatch) -> Parts:
    """Split a batch by kind of row. A batch that has only outputs is not copied."""
    note = batch.column("note")
    if note.null_count == len(note):
        return Parts(batch, None, [])
    is_without = pc.fill_null(pc.equal(note, pa.scalar(NO_OUTPUT)), fill_value=False)
    is_output = pc.or_kleene(note.is_null(), pc.starts_with(note, MISFIT_NOTE))
    others = batch.filter(pc.invert(pc.or_(is_output, is_without)))
    columns = (others.column(name).to_pylist() for name in ("note", "key", "value"))
    control_rows = [ControlRow(json.loads(n), k, v) for n, k, v in zip(*columns, strict=True)]
    return Parts(batch.filter(is_output), batch.filter(is_without) if is_without.true_count else None, control_rows)


def await_first(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Wait for the first batch; returns all batches."""
    rest = iter(batches)
    return chain(list(islice(rest, 1)), rest)


def _preview(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data[: _PREVIEW_CHARACTERS + 1].decode("utf-8", "backslashreplace")
    return text if len(text) <= _PREVIEW_CHARACTERS else text[:_PREVIEW_CHARACTERS] + "…"
