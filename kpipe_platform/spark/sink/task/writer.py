"""The writer: Arrow batches in, acknowledged Kafka records out. Runs in a Spark task's Python worker.

It never raises for what Kafka answers: Spark would retry the task and hide the reason in a stack trace. It yields
one outcome, and the driver decides.
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
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.transactions.slice import SliceTransaction
from kpipe_platform.policies.components import stops
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
from kpipe_platform.spark.sink.task.outputs import OutputChecks, OutputRows, Row, by_range
from kpipe_platform.spark.sink.task.producer import GiveUpError, Sink
from kpipe_platform.spark.sink.task.refused import find_refused
from kpipe_platform.spark.stage.notes import RuleCount

OUTCOME_SCHEMA = "outcome string"
_ARROW_OUTCOME = pa.schema([("outcome", pa.string())])

# Enough for a whole JSON record of usual size, which is then shown field by field.
_PREVIEW_CHARACTERS = 2_000
_BATCH_BYTES = 1_000_000
# What librdkafka takes of a record, whatever its topic does; more than its queue holds would wait there for ever.
_UNCOMPRESSED_BYTES = 100_000_000


def run_writer(spec: WriterSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one slice, or a parallel part of it.

    Args:
        spec: What to do.
        batches: Rows of ``spark.writer.writer_rows``, in the order in which they are to be written.

    Yields:
        One row with the Outcome as JSON.
    """
    yield told(outcome_of(spec, lambda: _run(spec, batches)))


def outcome_of(spec: WriterSpec, write: Callable[[], Outcome]) -> Outcome:
    """What became of a write; what Kafka's client raised is an error of it, not of the stage."""
    try:
        return write()
    except KpipeError as error:
        return Outcome("error", error=error)
    except KafkaException as exception:
        return Outcome("error", error=translate(exception, spec.settings, f"write {spec.slice}"))


def told(outcome: Outcome) -> pa.RecordBatch:
    """An outcome as the only row that a writer gives back."""
    return pa.RecordBatch.from_pydict({"outcome": [outcome_to_json(outcome)]}, schema=_ARROW_OUTCOME)


def _run(spec: WriterSpec, batches: Iterable[pa.RecordBatch]) -> Outcome:
    task = WriterTask(spec)
    if spec.mode == "probe":
        return task.probe(batches)
    if spec.mode == "count":
        return task.count(batches)
    if spec.mode == "idempotent":
        return task.write_idempotent(batches)
    return task.write_transactional(batches)


class WriterTask:
    """The state of one task, and the ways to write.

    Args:
        spec: What to do.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self.spec = spec
        self.outcome = Outcome("written")
        self.checks = OutputChecks(spec)
        self.faults = FaultRows(spec)
        self.steps: dict[str, float] = {"open": 0.0, "write": 0.0, "commit": 0.0}
        self.written: Counter[int] = Counter()
        self.read: Counter[int] = Counter()
        # What the destination will not take, and this pass dead-letters.
        self.refused: dict[Rejected, Fault] = {}
        # How many the destination topic has, as far as the outputs make it worth asking; None: the brokers do not say.
        self.partitions: int | None = 0
        self.ended = False
        self.last_order = -1

    def producer_settings(self) -> dict[str, Any]:
        """Librdkafka producer properties, with what the topics take and what the protocol needs."""
        limits = self.spec.record_limits
        # The brokers refuse a whole batch above the topic's limit, innocent records with it, and librdkafka does not
        # split one; 512 bytes are room for the batch's own header.
        largest_batch = max(min([_BATCH_BYTES, *limits]) - 512, 1_024)
        return {
            "linger.ms": 20,
            "compression.type": DEFAULT_COMPRESSION,
            "queue.buffering.max.messages": 500_000,
            # 128 MiB bounds the worker's memory; the writer waits when the queue is full.
            "queue.buffering.max.kbytes": 131_072,
            # Java's default partitioner: a key lands where every other Kafka client puts it.
            "partitioner": "murmur2_random",
            **self.spec.producer,
            "batch.size": min(int(self.spec.producer.get("batch.size", _BATCH_BYTES)), largest_batch),
            # It judges records before they are compressed, and what is too large then is found before sending.
            "message.max.bytes": min(max(*limits, _UNCOMPRESSED_BYTES), 1_000_000_000),
            "message.timeout.ms": int(self.spec.delivery_timeout_s * 1000),
            "delivery.report.only.error": True,
            "enable.idempotence": True,
        }

    # Modes

    def write_transactional(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Write everything, with the offsets, in one transaction."""
        spec = self.spec
        transaction = SliceTransaction(
            spec.settings,
            spec.slice,
            timeout_s=spec.transaction_timeout_s,
            producer_settings=self.producer_settings(),
        )
        if spec.after_input:
            batches = arrived(batches)
        with transaction, self.faults:
            with self.timed("open"):
                transaction.open()
                earlier = transaction.committed_earlier()
            if earlier is not None:
                return Outcome("committed_earlier", counts=dict(enumerate(earlier)))
            sink = Sink(transaction.producer)
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
                raise transaction.error(exception, "write outputs") from exception
        return self.finish("committed")

    def write_idempotent(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Write everything and move no offsets."""
        spec = self.spec
        sink = Sink(new_client(Producer, {**spec.settings.for_librdkafka(), **self.producer_settings()}, spec.settings))
        with self.faults:
            try:
                self.consume(batches, sink, None)
                with self.timed("write"):
                    left = sink.flush(spec.delivery_timeout_s)
            except GiveUpError:
                return self.given_up(sink, None)
            except KafkaException as exception:
                raise translate(exception, spec.settings, f"write outputs of {spec.slice}") from exception
        if left:
            raise not_delivered(spec.settings, str(spec.slice), left)
        return self.finish(self.outcome.status if self.stopped() else "written")

    def count(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Say what would stop the run, and send nothing: parallel writers cannot take back what they sent."""
        with self.faults:
            for batch in batches:
                self._note_segments()
                for aside in parted(batch).others:
                    for _ in self._dead_letters(aside):
                        pass
        return self.finish(self.outcome.status if self.stopped() or self._is_over_limit() else "counted")

    def probe(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Find every record that the brokers refuse; nothing of it becomes visible."""
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
            raise translate(exception, settings, "look for refused records") from exception
        sink = Sink(producer)
        for batch in batches:
            outputs, _, others = parted(batch)
            self.faults.handled.update(
                (a.note["src"], a.note["offset"]) for a in others if a.note["kind"] == KIND_NOTED
            )
            rows = OutputRows(self._of_whole_records(outputs), self.spec)
            # At least once, the pass before kept them to itself; what cannot be sent tells nothing of the others.
            self.outcome.rejected.update(self._rejected(rows, sink))
            known = {**self.spec.rejected, **self.outcome.rejected}
            suspects = [row for row in rows.rows() if row.identity not in known]
            refused = find_refused(producer, self.spec, suspects, REFUSED_CODES)
            self.outcome.rejected.update({row.identity: fault for row, fault in refused})
        return self.finish("rejected" if self.outcome.rejected else "error")

    # Work

    def _require_order(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that were to come in order and do not; others have no column that says where they belong.

        Raises:
            DisorderError: A row belongs before the one that came before it.
        """
        if "ord" not in batch.schema.names or not batch.num_rows:
            return
        order = batch.column("ord")
        before = pa.concat_arrays([pa.array([self.last_order], order.type), order[:-1]])
        if not pc.all(pc.less(before, order)).as_py():
            raise DisorderError
        self.last_order = order[-1].as_py()

    def require_end(self) -> None:
        """Refuse to commit unless the row that comes after all others was seen.

        Raises:
            EngineUnavailableError: Rows are missing. Spark reports its task's failure by itself; this is only told
                where it does not.
        """
        if not self.ended:
            msg = (
                f"{self.spec.slice}: the writer's rows ended early: the Spark task that makes them failed or was ended"
            )
            raise EngineUnavailableError(msg, fix="see the failure of that task in Spark's log; nothing is committed")

    def await_acks(self, sink: Sink, transaction: SliceTransaction) -> None:
        """Wait for the acknowledgement of everything that was sent.

        Raises:
            GiveUpError: The brokers refused something.
            BrokerUnavailableError: Not everything was acknowledged in time.
        """
        if not transaction.is_open:
            transaction.begin()
        with self.timed("write"):
            left = sink.flush(self.spec.delivery_timeout_s)
        if left:
            raise not_delivered(self.spec.settings, str(self.spec.slice), left)

    def consume(self, batches: Iterable[pa.RecordBatch], sink: Sink, transaction: SliceTransaction | None) -> None:
        """Send what the rows ask for, and count."""
        for batch in batches:
            self._require_order(batch)
            if self.ended:
                msg = f"{self.spec.slice}: rows came after the last one"
                raise EngineUnavailableError(msg, fix="report it: Spark changed the order of the rows")
            began = time.monotonic()
            self._note_segments()
            outputs, without, others = parted(batch)
            if without is not None:
                self.read.update(by_range(without))
            for aside in others:
                for topic, row in self._dead_letters(aside):
                    if self.stopped():
                        continue
                    self._begin(transaction)
                    sink.send_all(topic, [row.message])
            if outputs.num_rows:
                self._write_outputs(outputs, sink, transaction)
            sink.poll()
            self.steps["write"] += time.monotonic() - began

    def _dead_letters(self, aside: Aside) -> Iterator[tuple[str, Row]]:
        """Count what is no output, and make the dead letter that it asks for."""
        note = aside.note
        kind = note["kind"]
        if kind == KIND_END:
            self.ended = True
        if "records" in note:
            self.read[note["src"]] += note["records"]
        if kind == KIND_RULE:
            found = RuleCount.from_json(note["note"])
            self.outcome.rules[found.rule] = found
        elif kind == KIND_FAULT:
            yield from self.faults.undecoded(note, aside.key, aside.value)
        elif kind == KIND_NOTED:
            yield from self.faults.noted(note)

    def _note_segments(self) -> None:
        """What the slice went through before its first row came here, and what it is in now."""
        if not self.faults.segments:
            now = int(time.time() * 1000)
            started = self.spec.started_ms or now
            self.faults.segments = (Segment("run", started, max(now - started, 0)), Segment("write", now))

    def _write_outputs(self, part: pa.RecordBatch, sink: Sink, transaction: SliceTransaction | None) -> None:
        spec = self.spec
        part = self._of_whole_records(part)
        rows = OutputRows(part, spec)
        counted = by_range(part)
        if spec.per_record:
            self.read.update(counted)
        self._note_refused(self._rejected(rows, sink))
        if self.stopped() and spec.mode == "transactional":
            return
        self._begin(transaction)
        if not (spec.rejected or self.refused or self.outcome.rejected):
            sink.send_all(spec.output_topic, rows.messages())
            self.written.update(counted)
        else:
            kept = [row for row in rows.rows() if not self._is_rejected(row, sink)]
            sink.send_all(spec.output_topic, (row.message for row in kept))
            self.written.update(row.src or 0 for row in kept)
        self._note_preview(rows)

    def _rejected(self, rows: OutputRows, sink: Sink) -> dict[Rejected, Fault]:
        """What the topic does not take, of the rows."""
        asked = rows.partitions
        if asked is not None and self.partitions is not None and asked[1] >= self.partitions:
            # Asked again where there seem to be too few: a topic grows while it is written to.
            self.partitions = sink.partitions(self.spec.output_topic, self.spec.settings.request_timeout_s)
        return self.checks.rejected(rows, self.partitions)

    def _note_refused(self, found: dict[Rejected, Fault]) -> None:
        """Have refused outputs dead-lettered in this pass, or by the driver's decision in another one.

        Outputs of one record go or stay together. In a transaction some of them may have been sent before, so it takes
        another pass to keep them back; at least once they are in the topic already.
        """
        spec = self.spec
        together = spec.mode == "transactional" and not spec.per_record
        if stops(spec.policies.action(Component.DESTINATION)) or (
            together and any(isinstance(identity, tuple) for identity in found)
        ):
            self.outcome.rejected.update(found)
        else:
            self.refused.update(found)

    def _of_whole_records(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """The outputs without those of records of which the stage set another row aside; its note comes before them."""
        handled = self.faults.handled
        if not handled or "src_offset" not in part.schema.names:
            return part
        src = part.column("src").to_pylist() if "src" in part.schema.names else repeat(0)
        places = zip(src, part.column("src_offset").to_pylist(), strict=False)
        return part.filter(pa.array([place not in handled for place in places], pa.bool_()))

    def _is_rejected(self, row: Row, sink: Sink) -> bool:
        fault = self.spec.rejected.get(row.identity) or self.refused.get(row.identity)
        if fault is None:
            return row.identity in self.outcome.rejected
        for topic, letter in self.faults.rejected_output(row, fault):
            sink.send_all(topic, [letter.message])
        return True

    @staticmethod
    def _begin(transaction: SliceTransaction | None) -> None:
        if transaction is not None and not transaction.is_open:
            transaction.begin()

    def stopped(self) -> bool:
        """Whether a record failed so that this pass cannot be the last; the outcome says how."""
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

    def given_up(self, sink: Sink, transaction: SliceTransaction | None) -> Outcome:
        """What refused sends mean: an outcome where the records are the reason, else the typed error."""
        codes = {error.code() for error in sink.failures}
        letters = sink.failed_topics & {c.topic for c in self.spec.dead_letters if c is not None}
        only_letters = bool(letters) and letters == sink.failed_topics
        if codes & REFUSED_CODES:
            if only_letters:
                msg = f"{self.spec.slice}: the brokers refuse a dead letter for topic {min(letters)!r}"
                raise DeadLetterError(
                    f"{msg}: {sink.failures[0].str()}", fix="see the settings of that topic; offsets are unmoved"
                )
            return self.finish("broker_rejected")
        # After a fatal error the queued records fail too, with a code that says less than the first.
        error = next((e for e in sink.failures if e.code() in FENCED_CODES), sink.failures[0])
        what = f"write outputs of {self.spec.slice} to {self.spec.topic}"
        if only_letters:
            what = f"write dead letters of {self.spec.slice} to {min(letters)}"
        found = translate(error, self.spec.settings, what) if transaction is None else transaction.error(error, what)
        found.part = "dead_letter" if only_letters else "destination"
        raise found

    # Accounts

    def _note_preview(self, rows: OutputRows) -> None:
        missing = self.spec.preview_rows - len(self.outcome.preview)
        if missing > 0:
            self.outcome.preview += [PreviewRow(_short(k), _short(v)) for k, v in rows.first(missing)]

    def counts(self) -> dict[int, SliceCounts]:
        """What was counted until now, by range."""
        return {
            src: SliceCounts(
                read=self.read[src],
                written=self.written[src],
                dead_lettered=self.faults.dead_lettered.get(src, 0),
                skipped=self.faults.skipped.get(src, 0),
            )
            # Outputs without a source are counted under 0, also where the slice has no range at all.
            for src in range(max(len(self.spec.slice.ranges), 1))
        }

    def finish(self, status: str) -> Outcome:
        """The outcome with everything that was counted."""
        outcome = self.outcome
        outcome.status = status
        outcome.counts = self.counts()
        outcome.faults = self.faults.seen
        outcome.samples = self.faults.samples
        outcome.reasons = self.faults.reasons
        outcome.steps_s = self.steps
        if status == "error":
            outcome.error = DeadLetterError("the brokers refused a batch, and every record of it alone is taken")
        return outcome

    def timed(self, step: str) -> _Timer:
        """Adds the time of a ``with`` block to a step."""
        return _Timer(self.steps, step)


class _Timer:
    def __init__(self, steps: dict[str, float], step: str) -> None:
        self._steps, self._step = steps, step

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._steps[self._step] += time.monotonic() - self._began


class DisorderError(Exception):
    """Rows do not come in the order in which they are to be written."""


class Aside(NamedTuple):
    """A row that is no output: what it is, and the key and value of a record that does not decode."""

    note: dict[str, Any]
    key: bytes | None
    value: bytes | None


class Parts(NamedTuple):
    """The rows of a batch: outputs, records without an output (None: there are none), and all others."""

    outputs: pa.RecordBatch
    without: pa.RecordBatch | None
    others: list[Aside]


def parted(batch: pa.RecordBatch) -> Parts:
    """A batch by kind of row; its outputs are not copied where there is nothing else."""
    note = batch.column("note")
    if note.null_count == len(note):
        return Parts(batch, None, [])
    is_without = pc.fill_null(pc.equal(note, pa.scalar(NO_OUTPUT)), fill_value=False)
    is_output = pc.or_kleene(note.is_null(), pc.starts_with(note, MISFIT_NOTE))
    others = batch.filter(pc.invert(pc.or_(is_output, is_without)))
    columns = (others.column(name).to_pylist() for name in ("note", "key", "value"))
    asides = [Aside(json.loads(n), k, v) for n, k, v in zip(*columns, strict=True)]
    return Parts(batch.filter(is_output), batch.filter(is_without) if is_without.true_count else None, asides)


def arrived(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Wait for the first batch."""
    rest = iter(batches)
    return chain(list(islice(rest, 1)), rest)


def _short(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data[: _PREVIEW_CHARACTERS + 1].decode("utf-8", "backslashreplace")
    return text if len(text) <= _PREVIEW_CHARACTERS else text[:_PREVIEW_CHARACTERS] + "…"
