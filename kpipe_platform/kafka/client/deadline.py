"""A hard deadline for broker calls, so that a client that never answers does not block a sensor tick."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from kpipe_platform.errors import BrokerUnavailableError

Result = TypeVar("Result")


class _Outcome(Generic[Result]):
    def __init__(self) -> None:
        self.value: Result | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()


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
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], Result]) -> Result:
        """Run the call and return its result.

        Raises:
            BrokerUnavailableError: No result in time, or an earlier call still hangs.
            Exception: The exception that the call raised.
        """
        outcome: _Outcome[Result] = _Outcome()
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                msg = f"cannot {self._what}: the previous call has not returned yet"
                raise BrokerUnavailableError(msg, fix="check that the brokers are running and reachable")
            thread = threading.Thread(target=_fulfil, args=(call, outcome), name="kpipe-tick", daemon=True)
            self._thread = thread
            thread.start()
        if not outcome.done.wait(self._seconds):
            msg = f"cannot {self._what}: no answer within the tick's deadline of {self._seconds:g} s"
            raise BrokerUnavailableError(msg, fix="check that the brokers are running and reachable")
        if outcome.error is not None:
            raise outcome.error
        return outcome.value  # type: ignore[return-value]  # set together with done, where there is no error


def _fulfil(call: Callable[[], Result], outcome: _Outcome[Result]) -> None:
    try:
        outcome.value = call()
    except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
        outcome.error = error
    finally:
        outcome.done.set()
