"""Commit: store a slice's offsets from the driver, and check the outcome of an unacknowledged commit.

With exactly-once delivery, the writer's task commits outputs and offsets together; see
``kpipe_platform.spark.sink.task.writer``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kpipe_platform.errors import CommitUnknownError, EngineUnavailableError, KpipeError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.kafka.transactions.slice import SliceTransaction, read_back, store_offsets
from kpipe_platform.slices.report import SliceReport
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.spark.sink.spec import Outcome

logger = logging.getLogger(__name__)

UNANSWERED = (CommitUnknownError, EngineUnavailableError)
"""Errors after which a slice may be committed: the commit was not acknowledged, or Spark lost the writer's result."""

# Default without a destination, seconds.
_TRANSACTION_TIMEOUT_S = 300.0


def commit_empty(slice_: Slice, settings: SliceSettings) -> SliceReport:
    """Finish an empty slice without a Spark job.

    Stores the start offset of a new group: a group that starts at the latest offset would otherwise start again at the
    latest offset in each run, and lose the records between runs. Stores an old offset again before the brokers delete
    it.

    Raises:
        KpipeError: The offsets were not stored.
    """
    began = time.monotonic()
    counts = [SliceCounts() for _ in slice_.ranges]
    if slice_.moves_offsets:
        try:
            with _transaction(slice_, settings) as transaction:
                transaction.open()
                store_offsets(transaction, counts)
        except CommitUnknownError as error:
            counts_without_answer(slice_, error, settings.source, settings)
    return SliceReport(slice_, counts, duration_s=time.monotonic() - began)


def commit_after(
    slice_: Slice, settings: SliceSettings, work: Callable[[], Outcome]
) -> tuple[Outcome, Sequence[SliceCounts]]:
    """Write a slice, then commit its offsets in a separate transaction.

    1. Acquire the transactional id, which fences older owners.
    2. Compare the group's offsets with the plan.
    3. Call `work`.
    4. Compare again, and commit the offsets.

    Args:
        slice_: The slice.
        settings: The run's settings.
        work: Writes the slice. Not called if an earlier attempt committed the slice.

    Returns:
        The outcome of `work`, and the committed counts.

    Raises:
        OffsetConflictError: Another run moved the offsets.
        Exception: Any error of `work`; offsets are unchanged.
    """
    outcome = Outcome("committed_earlier")
    try:
        with _transaction(slice_, settings) as transaction:
            began = time.monotonic()
            transaction.open()
            earlier = transaction.committed_earlier()
            opened_s = time.monotonic() - began
            if earlier is not None:
                return outcome, earlier
            outcome = work()
            began = time.monotonic()
            counts = store_offsets(transaction, counts_by_range(outcome, slice_))
            steps = {**outcome.steps_s, "open": opened_s, "commit": time.monotonic() - began}
            return replace(outcome, steps_s=steps), counts
    except CommitUnknownError as error:
        return outcome, counts_without_answer(slice_, error, settings.source, settings)


def counts_without_answer(
    slice_: Slice, error: KpipeError, connection: ConnectionSettings, settings: SliceSettings
) -> Sequence[SliceCounts]:
    """Return the counts of a slice that was committed although its commit was not acknowledged.

    Raises:
        KpipeError: The given error, if the slice was not committed or its state is unknown.
    """
    try:
        counts = read_back(connection, slice_, timeout_s=_timeout_s(settings))
    except KpipeError as other:
        logger.warning("%s: cannot determine whether it was committed: %s", slice_, other)
        raise error from other
    if counts is None:
        raise error
    logger.warning("%s was committed according to the group's offset, although its writer returned no result", slice_)
    return counts


def counts_by_range(outcome: Outcome, slice_: Slice) -> list[SliceCounts]:
    """Return the counts of each range of a slice; for a slice without ranges, the counts of its outputs."""
    return [outcome.counts.get(index, SliceCounts()) for index in range(max(len(slice_.ranges), 1))]


def _transaction(slice_: Slice, settings: SliceSettings) -> SliceTransaction:
    return SliceTransaction(settings.source, slice_, timeout_s=_timeout_s(settings))


def _timeout_s(settings: SliceSettings) -> float:
    return settings.destination.transaction_timeout_s if settings.destination else _TRANSACTION_TIMEOUT_S
