"""Isolation: find the records that a stage fails on, by calling it on parts of the slice. The search writes nothing.

The search is group testing: the size of the parts follows the failure rate found so far. Finding `k` failing records
among `n` takes about ``k log2(n / k) + 2 k`` calls, which is near the minimum for any search. See docs/adr/0009.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from contextvars import copy_context

from kpipe_platform.errors import DeadLetterLimitError, StageFailedError
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.policies.limits import DeadLetterLimit
from kpipe_platform.spark.sink.errors import too_many_faults

Part = Sequence[OffsetRange]
Fails = Callable[[Part], StageFailedError | None]
"""Calls the stage on offset ranges. Returns a failure that the data caused; raises any other error. Several threads
call it at the same time."""

# Single records to try first if a limit is set. If 60% of all records failed, the chance that none of 8 fails would be
# 1 in 1,500.
_FIRST_SAMPLES = 8
# Raise if the failures among the samples would have at most this probability when the limit holds.
_DOUBT = 0.01


def failing_records(
    ranges: Sequence[OffsetRange], fails: Fails, first: StageFailedError, at_once: int = 1
) -> Iterator[tuple[OffsetRange, StageFailedError]]:
    """Find the records that the stage fails on when it processes them alone.

    Args:
        ranges: All offsets of the slice, in order.
        fails: Calls the stage on a part of the offsets.
        first: The failure of the whole slice.
        at_once: Number of parts to try at the same time, in threads. Default 1.

    Yields:
        A range of one offset and the failure of that record. In offset order if `at_once` is 1.
    """
    whole = range(sum(r.span for r in ranges))
    unknown, width = [whole], len(whole)
    known = failing_count = 0
    running: dict[Future[tuple[range, StageFailedError | None] | None], range] = {}
    ended = threading.Event()

    def tried(part: Part) -> StageFailedError | None:
        if ended.is_set():
            raise CancelledError
        return fails(part)

    with ThreadPoolExecutor(at_once, thread_name_prefix="kpipe-isolation") as pool, ExitStack() as stack:
        # When the search ends for any reason, parts in progress stop at their next call.
        stack.callback(ended.set)
        while unknown or running:
            while unknown and len(running) < at_once:
                part, rest = unknown[0][:width], unknown[0][width:]
                unknown[:1] = [rest] if rest else []
                error = first if part == whole else None
                running[pool.submit(copy_context().run, _first_failing, ranges, part, error, tried)] = part
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                part = running.pop(future)
                failing = future.result()
                if failing is None:
                    known, width = known + len(part), 2 * width
                    continue
                record, error = failing
                known += record.stop - part.start
                _put_back(unknown, range(record.stop, part.stop))
                if error is not None:
                    failing_count += 1
                    yield _offsets(ranges, record)[0], error
                # A part of this width fails with a probability of about one half, so each call gives most information.
                width = max(1, round(math.log(2) * known / max(failing_count, 1)))


def _put_back(unknown: list[range], part: range) -> None:
    """Add a part to the untried parts and merge it with the part that follows it."""
    if not part:
        return
    index = next((i for i, each in enumerate(unknown) if each.start >= part.stop), len(unknown))
    if index < len(unknown) and unknown[index].start == part.stop:
        part = range(part.start, unknown.pop(index).stop)
    unknown.insert(index, part)


def _first_failing(
    ranges: Sequence[OffsetRange], part: range, error: StageFailedError | None, fails: Fails
) -> tuple[range, StageFailedError | None] | None:
    """Find the first failing record of a part by binary search.

    Args:
        ranges: All offsets of the slice.
        part: Positions in these offsets.
        error: The part's failure; None if the part was not tried yet.
        fails: Calls the stage.

    Returns:
        The record and its failure, or None if the part does not fail. The failure is None if the record does not fail
        alone: the part fails only on its records together.
    """
    if error is None:
        error = fails(_offsets(ranges, part))
        if error is None:
            return None
    alone = len(part) == 1
    while len(part) > 1:
        half = part[: len(part) // 2]
        failure = fails(_offsets(ranges, half))
        if failure is not None:
            part, error, alone = half, failure, len(half) == 1
        else:
            part, alone = part[len(half) :], False
    return part, error if alone else fails(_offsets(ranges, part))


def _offsets(ranges: Sequence[OffsetRange], part: range) -> list[OffsetRange]:
    """Convert positions to offset ranges. Positions count the offsets of all ranges in sequence."""
    offset_ranges, before = [], 0
    for r in ranges:
        start, end = max(part.start - before, 0), min(part.stop - before, r.span)
        if start < end:
            offset_ranges.append(OffsetRange(r.topic, r.partition, r.start + start, r.start + end))
        before += r.span
    return offset_ranges


def refuse_hopeless(samples: Sequence[OffsetRange], fails: Fails, limit: DeadLetterLimit, records: int) -> None:
    """Try single records first, so that a broken stage fails early and not at the end of a long search.

    Args:
        samples: Single records, chosen at random.
        fails: Calls the stage on one of the samples.
        limit: Maximum share of failed records.
        records: Number of records in the slice.

    Raises:
        DeadLetterLimitError: So many samples fail that the slice almost certainly exceeds the limit.
    """
    if limit.ratio is None or records < limit.minimum:
        return
    failed, reasons = 0, dict[str, int]()
    for number, record in enumerate(samples, 1):
        error = fails([record])
        if error is not None:
            failed += 1
            reasons[error.cause] = reasons.get(error.cause, 0) + 1
            if chance_of(failed, number, limit.ratio) < _DOUBT:
                raise _hopeless(limit, failed, number, reasons) from error
        if number >= _FIRST_SAMPLES and failed == 0:
            return


def _hopeless(limit: DeadLetterLimit, failed: int, tried: int, reasons: dict[str, int]) -> DeadLetterLimitError:
    where = "a random sample of the slice"
    return too_many_faults(where, limit, failed, tried, reasons)


def chance_of(failed: int, tried: int, ratio: float) -> float:
    """Return the probability that at least `failed` of `tried` records fail if a share of ``ratio`` fails."""
    return sum(math.comb(tried, k) * ratio**k * (1 - ratio) ** (tried - k) for k in range(failed, tried + 1))
