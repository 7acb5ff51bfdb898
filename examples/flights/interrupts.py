"""Signals that end a run: they unwind it, so that everything it started is stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """Somebody asked for the end.

    A class of its own, because Python ends itself by a signal, whatever the exit code says, once a plain
    KeyboardInterrupt passed through ``exec`` or ``eval`` of a text, as many imports do.
    """


def unwind_on_signals() -> None:
    """From now on the first of the signals raises Interrupted; later ones are ignored."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ignore_signals()
        raise Interrupted

    for each in STOPPING_SIGNALS:
        signal.signal(each, interrupt)


def ignore_signals() -> None:
    """Whoever presses Ctrl-C twice shall not interrupt the stopping of services."""
    for each in STOPPING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put back the handlers that a library replaces by its own."""
    before = {each: signal.getsignal(each) for each in STOPPING_SIGNALS}
    yield
    for each, handler in before.items():
        if signal.getsignal(each) is not handler:
            signal.signal(each, handler)
