"""Stop signals: they unwind a run, so that everything that it started is stopped."""

from __future__ import annotations

import signal
from types import FrameType

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A stop signal was received.

    A separate class, because once a plain KeyboardInterrupt has passed through ``exec`` or ``eval`` of a text, which
    many imports use, Python exits with a signal, regardless of the exit code.
    """


def unwind_on_signals() -> None:
    """Raise Interrupted on the first stop signal from now on, and ignore later ones."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ignore_signals()
        raise Interrupted

    for each in STOPPING_SIGNALS:
        signal.signal(each, interrupt)


def ignore_signals() -> None:
    """Ignore stop signals, so that a second Ctrl-C does not interrupt the shutdown of services."""
    for each in STOPPING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
