"""The writer of one lane: it writes in parallel with the other lanes, and commits in its turn.

It handles only lanes without problems. A record that stops the run, or one that the destination rejects, ends its lane
and all later lanes, and the driver writes the rest of the slice without lanes.
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
from kpipe_platform.spark.sink.task.producer import AckedProducer, GiveUpError
from kpipe_platform.spark.sink.task.writer import WriterTask, outcome_batch, outcome_of


def run_lane(specs: Sequence[WriterSpec], lane: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one lane.

    Args:
        specs: The writer's instructions, one spec for each lane.
        lane: Index of the lane to write.
        batches: The lane's rows, in the order in which they are written.

    Yields:
        One row with the `Outcome` as JSON: ``committed``, ``committed_earlier``, ``stopped`` or ``error``. The counts
        of a committed lane include those of all lanes before it.
    """
    lanes = [spec.slice for spec in specs]
    task = WriterTask(specs[lane])
    yield outcome_batch(outcome_of(specs[lane], lambda: _write(task, lanes, lane, batches)))


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
            # Lets the later lanes end soon. If this fails too, they detect the failure themselves.
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
    """Send all rows and wait for the acknowledgements. Returns False if the lane cannot be committed as it is."""
    sink = AckedProducer(transaction.producer)
    try:
        task.consume(batches, sink, transaction)
        # The dead-letter limit applies to the whole slice, so a lane does not dead-letter rejected outputs.
        if task.stopped() or task.refused:
            return False
        task.require_end()
        task.await_acks(sink, transaction)
    except GiveUpError:
        # Raises if the records are not the reason.
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
