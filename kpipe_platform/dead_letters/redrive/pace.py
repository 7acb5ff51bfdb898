"""Rate limit in records per second."""

from __future__ import annotations

import time
from collections.abc import Callable

from kpipe_platform.errors import ConfigError


class Pace:
    """Delays batches so that the average rate stays within a limit.

    Args:
        per_s: Maximum number of records per second. None means no limit.
        clock: Returns monotonic time in seconds.
        sleep: Sleeps for the given number of seconds.

    Raises:
        ConfigError: The limit is not above 0.
    """

    def __init__(
        self,
        per_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if per_s is not None and not per_s > 0:
            msg = f"max_records_per_s is {per_s}, not above 0"
            raise ConfigError(
                msg, fix="set max_records_per_s (--rate) to a number above 0, or leave it out for no limit"
            )
        self._per_s = per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at: float | None = None

    def batch(self, wanted: int) -> int:
        """Return the batch size: at most the records of one second, so that the rate is even."""
        return wanted if self._per_s is None else max(1, min(wanted, int(self._per_s)))

    def wait(self, records: int) -> None:
        """Wait until the records may be sent. Call it before their transaction begins, so that none stays open."""
        if self._per_s is None or not records:
            return
        now = self._clock()
        if self._free_at is not None and self._free_at > now:
            self._sleep(self._free_at - now)
            now = self._free_at
        self._free_at = now + records / self._per_s
