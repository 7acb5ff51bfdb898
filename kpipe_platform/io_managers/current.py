"""The slice that is being stored, for IO managers that wish to name their output after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from kpipe_platform.kafka.model.slices import Slice

Store: TypeAlias = Callable[[Any], None]
"""Stores what a stage returned; an inner IO manager."""

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


def store_slice_by(store: Store) -> Callable[[Slice, Any], None]:
    """Store the output of a slice by an inner IO manager, which may ask for the slice."""

    def store_slice(slice_: Slice, output: Any) -> None:
        with storing(slice_):
            store(output)

    return store_slice
