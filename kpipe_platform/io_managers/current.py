"""The slice that is being stored, for IO managers that wish to name their output after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kpipe_platform.kafka.slices import Slice

_current: ContextVar[Slice | None] = ContextVar("kpipe_current_slice", default=None)


def current_slice() -> Slice | None:
    """The slice whose output an inner IO manager is storing now; None outside of ``OffsetCommittingIOManager``.

    A store that names its output after the slice's ranges overwrites what a failed attempt left, and so stores each
    record once.
    """
    return _current.get()


@contextmanager
def storing(slice_: Slice) -> Iterator[None]:
    """Make ``slice_`` the current slice."""
    token = _current.set(slice_)
    try:
        yield
    finally:
        _current.reset(token)
