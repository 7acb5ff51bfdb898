"""A hard deadline for broker calls, so that a client that never answers does not block a sensor tick."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from kpipe_platform.errors import BrokerUnavailableError
from kpipe_platform.kafka.client.calls import run_in_thread

Result = TypeVar("Result")


class Deadline:
    """Runs the calls of one sensor in a thread, and stops waiting for them at the deadline.

    A call that hangs inside a client cannot be ended, so its thread stays behind. While it hangs, no further call is
    made, so a broker outage of a day leaves one thread and not thousands.

    Args:
        seconds: Maximum duration of a call, seconds.
        what: The call, as a phrase for error messages.
    """

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self._lock = threading.Lock()
        self._latest: Future[Any] | None = None

    def run(self, call: Callable[[], Result]) -> Result:
        """Run the call and return its result.

        Raises:
            BrokerUnavailableError: No result in time, or an earlier call still hangs.
            Exception: The exception that the call raised.
        """
        with self._lock:
            if self._latest is not None and not self._latest.done():
                msg = f"cannot {self._what}: the previous call has not returned yet"
                raise BrokerUnavailableError(msg, fix="check that the brokers are running and reachable")
            future = run_in_thread(call)
            self._latest = future
        if not wait([future], self._seconds).done:
            msg = f"cannot {self._what}: no answer within the tick's deadline of {self._seconds:g} s"
            raise BrokerUnavailableError(msg, fix="check that the brokers are running and reachable")
        return future.result()
