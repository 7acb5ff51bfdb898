"""Isolation: find the records that a stage fails on, by calling it on parts of the slice. The search writes nothing.

This is group testing with parts sized by what was found so far. The cost of `k` failing records among `n` is about
``k log2(n / k) + 2 k`` calls, which is near the least that any search needs. See docs/adr/0009.
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
"""Calls the stage on some offsets; returns its failure on data, and raises any other error. Several
threads call it at the same time."""

# Records that are tried first, alone, where a limit is set. With none of 8 failing, a share of 60% would have been a
# chance of 1 in 1,500.
_FIRST_SAMPLES = 8
# How unlikely the failures among the samples must be, if the limit held, to call it broken.
_DOUBT = 0.01


def failing_records(
    ranges: Sequence[OffsetRange], fails: Fails, first: StageFailedError, at_once: int = 1
) -> Iterator[tuple[OffsetRange, StageFailedError]]:
    """Find the records that the stage fails on when it gets them alone.

    Args:
        ranges: All offsets of the slice, in order.
        fails: Calls the stage on a part of them.
        first: The failure of the whole slice.
        at_once: Parts that are tried at the same time, in threads.

    Yields:
        A range of one offset, and the failure of that record alone; in order where one part is tried at a time.
    """
    whole = range(sum(r.span for r in ranges))
    unknown, width = [whole], len(whole)
    known = found = 0
    running: dict[Future[tuple[range, StageFailedError | None] | None], range] = {}
    ended = threading.Event()

    def tried(part: Part) -> StageFailedError | None:
        if ended.is_set():
            raise CancelledError
        return fails(part)

    with ThreadPoolExecutor(at_once, thread_name_prefix="kpipe-isolation") as pool, ExitStack() as stack:
        # However the search ends, parts that are still tried stop at their next call.
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
                    found += 1
                    yield _offsets(ranges, record)[0], error
                # A part of this width fails with a chance of about one half, so each call says the most.
                width = max(1, round(math.log(2) * known / max(found, 1)))


def _put_back(unknown: list[range], part: range) -> None:
    """Add a part to those that are not tried yet, joined with the one behind it."""
    if not part:
        return
    index = next((i for i, each in enumerate(unknown) if each.start >= part.stop), len(unknown))
    if index < len(unknown) and unknown[index].start == part.stop:
        part = range(part.start, unknown.pop(index).stop)
    unknown.insert(index, part)


def _first_failing(
    ranges: Sequence[OffsetRange], part: range, error: StageFailedError | None, fails: Fails
) -> tuple[range, StageFailedError | None] | None:
    """Find the first failing record of a part by halves.

    Args:
        ranges: All offsets of the slice.
        part: Positions in them.
        error: The part's failure, where it is known already.
        fails: Calls the stage.

    Returns:
        The record with its own failure, which is None where it does not fail alone: the part failed for its records
        together. None where the part does not fail.
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
    """The offsets at some positions, counted over all ranges one after another."""
    found, before = [], 0
    for r in ranges:
        start, end = max(part.start - before, 0), min(part.stop - before, r.span)
        if start < end:
            found.append(OffsetRange(r.topic, r.partition, r.start + start, r.start + end))
        before += r.span
    return found


def refuse_hopeless(samples: Sequence[OffsetRange], fails: Fails, limit: DeadLetterLimit, records: int) -> None:
    """Try single records first, so that a broken stage is refused soon and not at the end of a long search.

    Args:
        samples: Single records, chosen at random.
        fails: Calls the stage on one of them.
        limit: The largest share of failed records.
        records: Records of the whole slice.

    Raises:
        DeadLetterLimitError: So many of the samples fail that the limit does not hold for the slice.
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
    where = "a random sample that was tried one by one"
    return too_many_faults(where, limit, failed, tried, reasons)


def chance_of(failed: int, tried: int, ratio: float) -> float:
    """Probability that at least so many of the tried records fail when a share of ``ratio`` does."""
    return sum(math.comb(tried, k) * ratio**k * (1 - ratio) ** (tried - k) for k in range(failed, tried + 1))
