"""Isolation: a slice whose stage fails on data is halved until the failing record stands alone.

Each good part commits its own progress, in order, so that a run that is killed goes on where it stopped. ``k`` failing
records among ``n`` cost about ``2 k log2(n)`` calls of the stage.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kpipe_platform.errors import DeadLetterLimitError, StageFailedError
from kpipe_platform.io_managers.staged import IsolationCost, SliceReport
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.policies.limits import DeadLetterLimit
from kpipe_platform.spark.stops import too_many_faults

logger = logging.getLogger(__name__)

# Records that are tried alone before anything is written, where a limit is set. With none of 8 failing, a share of 60%
# would have been a chance of 1 in 1,500.
_FIRST_SAMPLES = 8
# How unlikely the failures among the samples must be, if the limit held, to call it broken.
_DOUBT = 0.01


@dataclass
class Isolation:
    """Finds the records that a stage fails on.

    Args:
        attempt: Takes a part of the slice: calls the stage and commits, or only tries. Raises StageFailedError.
        dispose: Takes a part of one offset whose record fails, with the failure: applies the action and commits.
        limit: The largest share of failed records.
        records: Records of the whole slice, and how many of them do not decode.
        clock: Monotonic seconds; injected for tests.
    """

    attempt: Callable[[Slice], SliceReport]
    dispose: Callable[[Slice, StageFailedError], SliceReport]
    limit: DeadLetterLimit
    records: int
    undecoded: int = 0
    clock: Callable[[], float] = time.monotonic
    cost: IsolationCost = field(default_factory=IsolationCost)

    def run(self, whole: Slice, done: Callable[[SliceReport], None]) -> None:
        """Take the whole slice in parts, from its first offset to its last.

        Args:
            whole: The slice that the stage fails on.
            done: Told of each part that is committed.

        Raises:
            StageFailedError: It is not the records: nothing can be isolated.
            DeadLetterLimitError: Too many records fail; what is committed already stays.
            KpipeError: Anything else that went wrong; the rest of the slice is unmoved.
        """
        began = self.clock()
        reasons: dict[str, int] = {}
        # The whole failed already, or nobody would ask.
        pending = [*reversed(whole.halves())] if whole.can_be_halved else [whole]
        while pending:
            part = pending.pop()
            self.cost.calls += 1
            try:
                report = self.attempt(part)
            except StageFailedError as error:
                if not error.isolable:
                    raise
                if part.can_be_halved:
                    pending += reversed(part.halves())
                    continue
                self.cost.records += 1
                self._count(str(whole), error, reasons)
                logger.info("isolated %s: %s", part, error.cause)
                report = self.dispose(part, error)
            self.cost.duration_s = self.clock() - began
            done(report)

    def _count(self, where: str, error: StageFailedError, reasons: dict[str, int]) -> None:
        reasons[error.cause] = reasons.get(error.cause, 0) + 1
        failed = self.cost.records + self.undecoded
        if not self.limit.allows(failed, self.records):
            raise too_many_faults(where, self.limit, failed, self.records, reasons)


def refuse_hopeless(
    samples: Sequence[Slice], attempt: Callable[[Slice], object], limit: DeadLetterLimit, records: int
) -> int:
    """Try single records and write nothing, so that a broken stage is found before the first commit.

    Args:
        samples: Parts of one record each, chosen at random.
        attempt: Calls the stage on a part and writes nothing. Raises StageFailedError.
        limit: The largest share of failed records.
        records: Records of the whole slice.

    Returns:
        The number of calls.

    Raises:
        DeadLetterLimitError: So many of the samples fail that the limit does not hold for the slice.
    """
    if limit.ratio is None or records < limit.minimum:
        return 0
    failed, reasons = 0, dict[str, int]()
    for number, part in enumerate(samples, 1):
        try:
            attempt(part)
        except StageFailedError as error:
            if not error.isolable:
                raise
            failed += 1
            reasons[error.cause] = reasons.get(error.cause, 0) + 1
            if chance_of(failed, number, limit.ratio) < _DOUBT:
                raise _hopeless(limit, failed, number, reasons) from error
        if number >= _FIRST_SAMPLES and failed == 0:
            return number
    return len(samples)


def _hopeless(limit: DeadLetterLimit, failed: int, tried: int, reasons: dict[str, int]) -> DeadLetterLimitError:
    where = "those that were tried alone, at random"
    return too_many_faults(where, limit, failed, tried, reasons)


def chance_of(failed: int, tried: int, ratio: float) -> float:
    """Probability that at least so many of the tried records fail when a share of ``ratio`` does."""
    return sum(math.comb(tried, k) * ratio**k * (1 - ratio) ** (tried - k) for k in range(failed, tried + 1))
