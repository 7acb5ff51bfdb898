"""The writer of one lane: it writes while the other lanes do, and commits in its turn.

It takes the good case only. Whatever is else (a record that stops the run, one that the destination refuses) ends the
lane and those behind it, and the driver takes what is left of the slice whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
from confluent_kafka import KafkaException

from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.kafka.transactions.lanes import LaneTransaction, Turn
from kpipe_platform.spark.sink.spec import Outcome, WriterSpec
from kpipe_platform.spark.sink.task.producer import GiveUpError, Sink
from kpipe_platform.spark.sink.task.writer import WriterTask, outcome_of, told


def run_lane(specs: Sequence[WriterSpec], lane: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one lane.

    Args:
        specs: What to do, a spec for each lane.
        lane: Which one.
        batches: The lane's rows, in the order in which they are to be written.

    Yields:
        One row with the Outcome as JSON: ``committed``, ``committed_earlier``, ``stopped`` or ``error``; its counts are
        those of all lanes that are committed then.
    """
    lanes = [spec.slice for spec in specs]
    task = WriterTask(specs[lane])
    yield told(outcome_of(specs[lane], lambda: _write(task, lanes, lane, batches)))


def _write(task: WriterTask, lanes: Sequence[Slice], lane: int, batches: Iterable[pa.RecordBatch]) -> Outcome:
    spec = task.spec
    transaction = LaneTransaction(
        spec.settings,
        lanes,
        lane,
        timeout_s=spec.transaction_timeout_s,
        producer_settings=task.producer_settings(),
    )
    with transaction, task.faults:
        with task.timed("open"):
            transaction.open()
            turn = transaction.turn()
        if turn.state == "earlier":
            return _earlier(turn)
        try:
            written = turn.state != "stopped" and _wrote(task, transaction, batches)
            turn = transaction.await_turn()
        except KpipeError:
            # So that the lanes behind end soon; where that fails too, they find it out by themselves.
            with suppress(KpipeError):
                transaction.stop(transaction.await_turn())
            raise
        if turn.state == "earlier":
            return _earlier(turn)
        if not written or turn.state == "stopped":
            transaction.stop(turn)
            return Outcome("stopped")
        counts = _together(turn, task)
        with task.timed("commit"):
            transaction.commit(counts)
    outcome = task.finish("committed")
    outcome.counts = dict(enumerate(counts))
    return outcome


def _wrote(task: WriterTask, transaction: LaneTransaction, batches: Iterable[pa.RecordBatch]) -> bool:
    """Send everything and await the acknowledgements; False where the lane cannot be committed as it is."""
    sink = Sink(transaction.producer)
    try:
        task.consume(batches, sink, transaction)
        # The limit of dead letters is the whole slice's, so a lane has no refused outputs dead-lettered.
        if task.stopped() or task.refused:
            return False
        task.require_end()
        task.await_acks(sink, transaction)
    except GiveUpError:
        # Raises where it is not the records.
        task.given_up(sink, transaction)
        return False
    except KafkaException as exception:
        raise transaction.error(exception, "write outputs") from exception
    return True


def _earlier(turn: Turn) -> Outcome:
    return Outcome("committed_earlier", counts=dict(enumerate(turn.counts)))


def _together(turn: Turn, task: WriterTask) -> list[SliceCounts]:
    own = list(task.counts().values())
    return [before + here for before, here in zip(turn.counts, own, strict=False)]
