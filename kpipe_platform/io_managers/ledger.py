"""What the steps of this process have read and not stored yet, and the tables that their runs have loaded.

Dagster loads a step's inputs and stores its output in two calls, which may be on two IO managers; in between, the
slice waits here. A table is used until the run ends.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.io_managers.partition_events import StepEvents, Watch, why_failed
from kpipe_platform.io_managers.pipeline import Pipeline
from kpipe_platform.io_managers.step import StepId
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.spark.frames import SliceFrames
from kpipe_platform.spark.stage_notes import StageNotes, start_noting


@dataclass
class OpenRead:
    """One topic that a step read.

    Args:
        pipeline: How it was read, and how its dead letters are written.
        slice: The plan.
        topic: The topic.
        frames: The rows; None where the slice is empty.
        events: Told of what becomes of the read.
        watch: Follows it.
        notes: What rules and row functions of the step set aside.
    """

    pipeline: Pipeline
    slice: Slice
    topic: KafkaTopic
    frames: SliceFrames | None
    events: StepEvents
    watch: Watch
    notes: StageNotes = field(default_factory=StageNotes)

    def release(self) -> None:
        """Drop the cached rows."""
        self.notes.release()
        if self.frames is not None:
            self.frames.release()


@dataclass
class _Ledger:
    lock: threading.Lock = field(default_factory=threading.Lock)
    reads: dict[StepId, list[OpenRead]] = field(default_factory=dict)
    tables: dict[str, list[SliceFrames]] = field(default_factory=dict)


_ledger = _Ledger()


def note_read(step: StepId, read: OpenRead) -> None:
    """Remember a read until the step's output is stored; what earlier attempts of the step read is dropped."""
    run_id, step_key, attempt = step
    for earlier in range(1, attempt):
        for dropped in take_reads((run_id, step_key, earlier)):
            dropped.events.close(why_failed(dropped.pipeline.step.instance, (run_id, step_key, earlier)))
            dropped.release()
    with _ledger.lock:
        reads = _ledger.reads.setdefault(step, [])
        reads.append(read)
    # Dagster calls the asset's function after this, in this thread.
    start_noting(reads[0].notes)


def take_reads(step: StepId) -> list[OpenRead]:
    """What the step read; it is forgotten here."""
    start_noting(None)
    with _ledger.lock:
        return _ledger.reads.pop(step, [])


def note_table(run_id: str, frames: SliceFrames) -> None:
    """Remember a table until its run ends."""
    with _ledger.lock:
        _ledger.tables.setdefault(run_id, []).append(frames)


def forget(run_id: str) -> None:
    """Let go of a run that ended: its tables, and what it has read and not stored, because a step of it failed."""
    with _ledger.lock:
        left = [step for step in _ledger.reads if step[0] == run_id]
        tables = _ledger.tables.pop(run_id, [])
    for table in tables:
        table.release()
    for step in left:
        for read in take_reads(step):
            # The asset's own function failed: no IO manager was called again.
            read.events.close(why_failed(read.pipeline.step.instance, step))
            read.release()


def pipelines(step: StepId) -> list[Pipeline]:
    """How the open reads of a step were read."""
    with _ledger.lock:
        return [read.pipeline for read in _ledger.reads.get(step, [])]
