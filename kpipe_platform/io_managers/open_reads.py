"""Slices that the steps of this process have read and not stored yet, and tables that their runs have loaded.

Dagster loads a step's inputs and stores its output in two calls, possibly on two IO managers. This module keeps the
slice between the two calls. A table is kept until the run ends.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.io_managers.partition_events import StepEvents, Watch, why_failed
from kpipe_platform.io_managers.step import KafkaStep, StepId
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.notes import StageNotes, start_noting


@dataclass
class OpenRead:
    """One topic that a step read.

    Args:
        kafka_step: The step, with the settings of the read.
        slice: The plan.
        topic: The topic.
        frames: The rows; None if the slice is empty.
        events: The step's partition events.
        watch: Reports the partition events of this read.
        notes: Records that the step's rules and row functions set aside.
    """

    kafka_step: KafkaStep
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
class _OpenReads:
    lock: threading.Lock = field(default_factory=threading.Lock)
    reads: dict[StepId, list[OpenRead]] = field(default_factory=dict)
    tables: dict[str, list[SliceFrames]] = field(default_factory=dict)


_open = _OpenReads()


def note_read(step: StepId, read: OpenRead) -> None:
    """Keep a read until the step's output is stored. Drop the reads of earlier attempts of the step."""
    run_id, step_key, attempt = step
    for earlier in range(1, attempt):
        for dropped in take_reads((run_id, step_key, earlier)):
            dropped.events.close(why_failed(dropped.kafka_step.step.instance, (run_id, step_key, earlier)))
            dropped.release()
    with _open.lock:
        reads = _open.reads.setdefault(step, [])
        reads.append(read)
    # Dagster calls the asset's function after this, in this thread.
    start_noting(reads[0].notes)


def take_reads(step: StepId) -> list[OpenRead]:
    """Return and remove the reads of a step."""
    start_noting(None)
    with _open.lock:
        return _open.reads.pop(step, [])


def note_table(run_id: str, frames: SliceFrames) -> None:
    """Keep a table until its run ends."""
    with _open.lock:
        _open.tables.setdefault(run_id, []).append(frames)


def forget(run_id: str) -> None:
    """Release the tables of a run that ended, and the reads of its failed steps."""
    with _open.lock:
        left = [step for step in _open.reads if step[0] == run_id]
        tables = _open.tables.pop(run_id, [])
    for table in tables:
        table.release()
    for step in left:
        for read in take_reads(step):
            # The asset's function failed, so Dagster did not call an IO manager for the output.
            read.events.close(why_failed(read.kafka_step.step.instance, step))
            read.release()


def steps_of(step: StepId) -> list[KafkaStep]:
    """Return the steps, with settings, of a step's open reads."""
    with _open.lock:
        return [read.kafka_step for read in _open.reads.get(step, [])]
