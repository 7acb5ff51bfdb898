"""Ctrl-C and other stop signals: the first unwinds the program, the second ends active runs, the third kills all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopSignals", "stop_signals"]

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts stop signals."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def hurry(self) -> bool:
        """Whether a second signal came: cancel active runs."""
        return self.count > 1

    @property
    def kill(self) -> bool:
        """Whether a third signal came: kill everything at once."""
        return self.count > 2

    def received(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: The signal is the first. Later ones must not interrupt the cleanup that the first began.
        """
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Handle SIGTERM and SIGHUP like Ctrl-C for the duration of the ``with`` block."""
    signals = StopSignals()
    before = {each: signal.signal(each, signals.received) for each in STOPPING_SIGNALS}
    try:
        yield signals
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
