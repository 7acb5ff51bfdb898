"""Trying a record again that the stage fails on alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kpipe_platform.deadletter import Retry
from kpipe_platform.errors import StageFailedError
from kpipe_platform.policies.retry import Attempt, RecordRetryPolicy
from kpipe_platform.spark.stage_notes import retry_of

T = TypeVar("T")


def again(
    policy: RecordRetryPolicy | None,
    attempt: Callable[[], T],
    error: StageFailedError,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[T | None, tuple[Retry, ...]]:
    """Try again what failed once.

    Args:
        policy: None: it is not tried again.
        attempt: What to try.
        error: What it failed with.
        clock: Monotonic seconds.
        sleep: Waits for seconds.

    Returns:
        The result and no history, or None and every attempt that failed; no history where nothing was tried again.
    """
    if policy is None:
        return None, ()
    began = clock()
    failed: list[Attempt] = []
    while True:
        number = len(failed) + 1
        delay = policy.next_delay_s(number, clock() - began, error)
        failed.append(Attempt.of(number, error, delay, int(time.time() * 1000)))
        if delay is None:
            return None, tuple(map(retry_of, failed)) if number > 1 else ()
        sleep(delay)
        try:
            return attempt(), ()
        except StageFailedError as next_error:
            error = next_error
