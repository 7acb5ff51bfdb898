"""Ctrl-C and other stop signals: the first unwinds the program, the second ends active runs, the third kills all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopSignals", "stop_signals"]

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts what was asked."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def hurry(self) -> bool:
        """A second one came: end what is at work."""
        return self.count > 1

    @property
    def kill(self) -> bool:
        """A third one came: wait for nothing."""
        return self.count > 2

    def received(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: It is the first. A second one must not break off the clean-up that the first began.
        """
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Let SIGTERM and SIGHUP unwind the program as Ctrl-C does."""
    signals = StopSignals()
    before = {each: signal.signal(each, signals.received) for each in STOPPING_SIGNALS}
    try:
        yield signals
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
