"""Write: deliver a slice's output and dead letters, and move its offsets.

There are three ways, of which a run has one; see ``kpipe_platform.slices.write.delivery``. Each states what it costs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.slices.report import SliceReport
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.target import SliceTarget
from kpipe_platform.slices.values import StagedSlice, Store
from kpipe_platform.slices.write.commit import UNANSWERED, commit_after, counts_by_range, counts_without_answer
from kpipe_platform.slices.write.encode import encode_output
from kpipe_platform.slices.write.spec import writer_spec
from kpipe_platform.spark.sink.job import evaluate, write_slice
from kpipe_platform.spark.sink.output_schema import columns_of
from kpipe_platform.spark.sink.rows import WriterRows
from kpipe_platform.spark.sink.spec import Outcome, WriterSpec
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.whole_records import of_whole_records


class Delivery(ABC):
    """How the slices of a run are written.

    Attributes:
        settings: The run's settings.
        target: Where outputs and dead letters go.
        writers: Parts of a slice that may be written at the same time, each in a transaction; see
            ``kpipe_platform.slices.write.lanes``.
    """

    settings: SliceSettings
    target: SliceTarget
    writers: int = 1

    @abstractmethod
    def write(self, staged: StagedSlice) -> SliceReport:
        """Write a slice's output and dead letters, and move its offsets.

        Raises:
            KpipeError: Anything that went wrong; offsets are unmoved.
        """

    @abstractmethod
    def try_out(self, staged: StagedSlice) -> None:
        """Run a slice's stage to its end and write nothing, to see whether it fails.

        Raises:
            StageFailedError: It does.
        """


@dataclass(frozen=True)
class ExactlyOnce(Delivery):
    """Outputs, dead letters and offsets in one transaction.

    One task writes a slice in offset order, so a single partition is written by one core. Source and destination are
    one cluster. ``docs/adr/0001`` has the measurements.
    """

    settings: SliceSettings
    target: SliceTarget
    topic: KafkaTopic
    writers: int = 1

    def write(self, staged: StagedSlice) -> SliceReport:
        """One transaction, in the writer's task."""
        began = time.monotonic()
        encoded = encode_output(staged, self.topic, self.settings.engine.spark_session, single_pass=True)
        spec = writer_spec(staged, self.settings, self.target, "transactional")
        try:
            outcome = _write(encoded.rows, staged, spec)
            counts: Sequence[SliceCounts] = counts_by_range(outcome, staged.slice)
        except UNANSWERED as error:
            outcome = Outcome("committed_earlier")
            counts = counts_without_answer(staged.slice, error, spec.settings, self.settings)
        return _report(staged, outcome, counts, encoded.columns, began)

    def try_out(self, staged: StagedSlice) -> None:
        """With the encoding, which may fail too."""
        _try_encoded(staged, self.topic, self.settings)


@dataclass(frozen=True)
class AtLeastOnce(Delivery):
    """Outputs and dead letters by parallel writers, then the offsets.

    All cores write, to any cluster. A run that dies between the two writes the slice again.
    """

    settings: SliceSettings
    target: SliceTarget
    topic: KafkaTopic

    def write(self, staged: StagedSlice) -> SliceReport:
        """Acknowledged writes, then the offsets in a transaction of their own."""
        began = time.monotonic()
        session = self.settings.engine.spark_session
        encoded = encode_output(staged, self.topic, session, single_pass=True, whole_records=True)
        spec = writer_spec(staged, self.settings, self.target, "idempotent")

        def work() -> Outcome:
            _count_first(staged, spec)
            return _write(encoded.rows, staged, spec)

        outcome, counts = commit_after(staged.slice, self.settings, work)
        return _report(staged, outcome, counts, encoded.columns, began)

    def try_out(self, staged: StagedSlice) -> None:
        """With the encoding, which may fail too."""
        _try_encoded(staged, self.topic, self.settings)


@dataclass(frozen=True)
class OtherStore(Delivery):
    """Outputs by another store, then dead letters, then the offsets.

    At least once: a run that dies before the offsets stores the slice again. A store that names its output after the
    slice replaces it instead.
    """

    settings: SliceSettings
    target: SliceTarget
    store: Store

    def write(self, staged: StagedSlice) -> SliceReport:
        """The store first: what it refuses leaves neither dead letters nor offsets behind."""
        began = time.monotonic()
        spec = writer_spec(staged, self.settings, self.target, "idempotent")
        for _, rows in staged.sources.values():
            # For the store's output and for the counts.
            rows.keep()

        def work() -> Outcome:
            _count_first(staged, spec)
            started = time.monotonic()
            self.store(staged.slice, of_whole_records(staged.output, staged.notes))
            stored_s = time.monotonic() - started
            outcome = _write(None, staged, spec)
            return replace(outcome, steps_s={**outcome.steps_s, "store": stored_s})

        outcome, counts = commit_after(staged.slice, self.settings, work)
        report = _report(staged, outcome, counts, columns_of(staged.output), began)
        return replace(report, counted_output=False)

    def try_out(self, staged: StagedSlice) -> None:
        """The output as the stage returned it."""
        evaluate(staged.output, str(staged.slice))


def _try_encoded(staged: StagedSlice, topic: KafkaTopic, settings: SliceSettings) -> None:
    evaluate(encode_output(staged, topic, settings.engine.spark_session).rows.frame, str(staged.slice))


def _write(rows: WriterRows | None, staged: StagedSlice, spec: WriterSpec) -> Outcome:
    return write_slice(rows, _rows_of(staged), spec, staged.notes)


def _count_first(staged: StagedSlice, spec: WriterSpec) -> None:
    """Look for what would stop the run: writers that do not commit cannot take back what they wrote.

    Raises:
        RecordFaultError: A record failed, and the action is to stop.
        DeadLetterLimitError: More records failed than the limit allows.
    """
    can_fault = bool(staged.notes.faults) or any(rows.can_fault for rows in _rows_of(staged))
    if can_fault and (spec.policies.may_stop or staged.notes.faults or spec.limit.ratio is not None):
        _write(None, staged, replace(spec, mode="count", topic=None))


def _rows_of(staged: StagedSlice) -> list[SliceFrames]:
    return [rows for _, rows in staged.sources.values()]


def _report(
    staged: StagedSlice,
    outcome: Outcome,
    counts: Sequence[SliceCounts],
    columns: Sequence[tuple[str, str]],
    began: float,
) -> SliceReport:
    return SliceReport(
        slice=staged.slice,
        counts=counts,
        reasons=outcome.reasons,
        samples=outcome.samples,
        rules=outcome.rules,
        preview=outcome.preview,
        columns=columns,
        steps_s=outcome.steps_s,
        duration_s=time.monotonic() - began,
        metadata=dict(staged.notes.metadata),
    )
