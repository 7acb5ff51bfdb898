"""Write: deliver a slice's output and dead letters, and commit its offsets.

There are three kinds of delivery. Each run uses one; see ``kpipe_platform.slices.write.delivery``. Each class
describes its costs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kpipe_platform.codecs.topics import Destination
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.slices import Slice
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
from kpipe_platform.spark.stage.notes import StageNotes
from kpipe_platform.spark.stage.whole_records import of_whole_records


class Delivery(ABC):
    """How the slices of a run are written.

    Attributes:
        settings: The run's settings.
        target: The topics for outputs and dead letters.
        writers: Maximum number of parts of a slice that are written at the same time, each in its own transaction; see
            ``kpipe_platform.slices.write.lanes``. Default 1.
        can_undo: Whether nothing of a slice remains if its write fails.
    """

    settings: SliceSettings
    target: SliceTarget
    writers: int = 1
    can_undo: ClassVar[bool] = False

    @abstractmethod
    def write(self, staged: StagedSlice) -> SliceReport:
        """Write a slice's output and dead letters, and commit its offsets.

        Raises:
            KpipeError: The write failed. Offsets are unchanged.
        """

    @abstractmethod
    def try_out(self, staged: StagedSlice) -> None:
        """Evaluate a slice's stage completely without writing, to check whether it fails.

        Raises:
            StageFailedError: The stage fails.
        """


@dataclass(frozen=True)
class ExactlyOnce(Delivery):
    """Writes outputs, dead letters and offsets in one transaction.

    One task writes a slice in offset order, so one core writes a single partition. Source and destination must be the
    same cluster. See ``docs/adr/0001`` for measurements.
    """

    settings: SliceSettings
    target: SliceTarget
    destination: Destination
    writers: int = 1
    can_undo: ClassVar[bool] = True

    def write(self, staged: StagedSlice) -> SliceReport:
        """Write in one transaction in the writer's task."""
        began = time.monotonic()
        encoded = encode_output(staged, self.destination, self.settings, single_pass=True)
        spec = writer_spec(staged, self.settings, self.target, "transactional")
        try:
            outcome = _write(encoded.rows, staged, spec)
            counts: Sequence[SliceCounts] = counts_by_range(outcome, staged.slice)
        except UNANSWERED as error:
            outcome = Outcome("committed_earlier")
            counts = counts_without_answer(staged.slice, error, spec.settings, self.settings)
        return report_of(staged.slice, staged.notes, outcome, counts, encoded.columns, began)

    def try_out(self, staged: StagedSlice) -> None:
        """With the encoding, which may fail too."""
        _try_encoded(staged, self.destination, self.settings)


@dataclass(frozen=True)
class AtLeastOnce(Delivery):
    """Writes outputs and dead letters with parallel writers, then commits the offsets.

    All cores write, to any cluster. If a run dies between the two steps, the next run writes the slice again.
    """

    settings: SliceSettings
    target: SliceTarget
    destination: Destination

    def write(self, staged: StagedSlice) -> SliceReport:
        """Write and wait for acknowledgments, then commit the offsets in a separate transaction."""
        began = time.monotonic()
        encoded = encode_output(staged, self.destination, self.settings, single_pass=True, whole_records=True)
        spec = writer_spec(staged, self.settings, self.target, "parallel")

        def work() -> Outcome:
            _count_first(staged, spec)
            return _write(encoded.rows, staged, spec)

        outcome, counts = commit_after(staged.slice, self.settings, work)
        return report_of(staged.slice, staged.notes, outcome, counts, encoded.columns, began)

    def try_out(self, staged: StagedSlice) -> None:
        """With the encoding, which may fail too."""
        _try_encoded(staged, self.destination, self.settings)


@dataclass(frozen=True)
class OtherStore(Delivery):
    """Writes outputs to another store, then dead letters, then commits the offsets.

    Delivery is at least once: if a run dies before the commit, the next run stores the slice again. A store that names
    its output after the slice replaces it instead.
    """

    settings: SliceSettings
    target: SliceTarget
    store: Store

    def write(self, staged: StagedSlice) -> SliceReport:
        """Call the store first: if it fails, no dead letters and no offsets are written."""
        began = time.monotonic()
        spec = writer_spec(staged, self.settings, self.target, "parallel")
        for _, rows in staged.sources.values():
            # The store's output and the counts both read these rows.
            rows.keep()

        def work() -> Outcome:
            counted = _count_first(staged, spec)
            started = time.monotonic()
            self.store(staged.slice, of_whole_records(staged.output, staged.notes))
            stored_s = time.monotonic() - started
            # Without dead letters to write, another pass would only count the records again.
            outcome = counted if counted is not None and not counted.total.dead_lettered else _write(None, staged, spec)
            return replace(outcome, steps_s={**outcome.steps_s, "store": stored_s})

        outcome, counts = commit_after(staged.slice, self.settings, work)
        report = report_of(staged.slice, staged.notes, outcome, counts, {"": columns_of(staged.output)}, began)
        return replace(report, counted_output=False)

    def try_out(self, staged: StagedSlice) -> None:
        """Evaluate the stage's output without encoding."""
        evaluate(staged.output, str(staged.slice))


def _try_encoded(staged: StagedSlice, destination: Destination, settings: SliceSettings) -> None:
    evaluate(encode_output(staged, destination, settings).rows.frame, str(staged.slice))


def _write(rows: WriterRows | None, staged: StagedSlice, spec: WriterSpec) -> Outcome:
    return write_slice(rows, _rows_of(staged), spec, staged.notes)


def _count_first(staged: StagedSlice, spec: WriterSpec) -> Outcome | None:
    """Check for faults that stop the run before the write, because non-transactional writes cannot be undone.

    Returns:
        The counts; None if no fault can stop the run.

    Raises:
        RecordFaultError: A record failed, and the action is to stop.
        DeadLetterLimitError: More records failed than the limit allows.
    """
    can_fault = bool(staged.notes.faults) or any(rows.can_fault for rows in _rows_of(staged))
    if can_fault and (spec.policies.may_stop or staged.notes.faults or spec.limit.ratio is not None):
        return _write(None, staged, replace(spec, mode="count", outputs=()))
    return None


def _rows_of(staged: StagedSlice) -> list[SliceFrames]:
    return [rows for _, rows in staged.sources.values()]


def report_of(
    slice_: Slice,
    notes: StageNotes,
    outcome: Outcome,
    counts: Sequence[SliceCounts],
    columns: Mapping[str, Sequence[tuple[str, str]]],
    began: float,
) -> SliceReport:
    """Report a committed slice.

    Args:
        slice_: The slice, as far as it was committed.
        notes: Notes of its stage calls.
        outcome: Outcome of the write.
        counts: Counts of each offset range.
        columns: Names and types of the output columns, by topic.
        began: Monotonic clock at the start of the write, seconds.
    """
    return SliceReport(
        slice=slice_,
        counts=counts,
        reasons=outcome.reasons,
        samples=outcome.samples,
        rules=outcome.rules,
        preview=outcome.preview,
        written=outcome.written,
        columns=columns,
        steps_s=outcome.steps_s,
        duration_s=time.monotonic() - began,
        metadata=dict(notes.metadata),
    )
