"""The slice that is being stored, for IO managers that name their output after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from kpipe_platform.kafka.model.slices import Slice

Store: TypeAlias = Callable[[Any], None]
"""Stores a stage's output, for example with an inner IO manager."""

_current: ContextVar[Slice | None] = ContextVar("kpipe_current_slice", default=None)


def current_slice() -> Slice | None:
    """Return the slice that an inner IO manager is storing; None outside ``OffsetCommittingIOManager``.

    A store that names its output after the slice's ranges overwrites the output of a failed attempt, and so stores each
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
    """Return a function that stores a slice's output with `store`, which may call `current_slice`."""

    def store_slice(slice_: Slice, output: Any) -> None:
        with storing(slice_):
            store(output)

    return store_slice
