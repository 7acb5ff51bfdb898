"""Spark columns that are made once: in a classic session each step of making one is a call to the JVM."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from pyspark import SparkContext
from pyspark.sql.utils import is_remote

Asked = ParamSpec("Asked")
Made = TypeVar("Made")

# Different arguments of one function: some for each topic that a process reads or writes.
_KEPT = 256


def reused(make: Callable[Asked, Made]) -> Callable[Asked, Made]:
    """Call a function once for the same arguments, as long as the process has the same JVM.

    Args:
        make: Makes columns, or what holds them. Its arguments can be hashed; the columns name what they are computed
            from, and belong to no DataFrame.
    """

    @lru_cache(maxsize=_KEPT)
    def kept(_engine: Hashable, *args: Asked.args, **kwargs: Asked.kwargs) -> Made:
        return make(*args, **kwargs)

    @wraps(make)
    def again(*args: Asked.args, **kwargs: Asked.kwargs) -> Made:
        return kept(_engine(), *args, **kwargs)  # type: ignore[arg-type]

    return again


def _engine() -> Hashable:
    """Where columns live that are made now: a client of a Connect server holds them itself."""
    return None if is_remote() else getattr(SparkContext, "_gateway", None)
