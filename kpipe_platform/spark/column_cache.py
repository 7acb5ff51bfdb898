"""Reuse of Spark column expressions. In a classic session, each step of building one is a call to the JVM."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

from pyspark.sql import is_remote

from kpipe_platform.spark._compat import jvm_gateway

Asked = ParamSpec("Asked")
Made = TypeVar("Made")

# Maximum cache entries per function. Each topic that a process reads or writes needs a few.
_KEPT = 256


def reused(make: Callable[Asked, Made]) -> Callable[Asked, Made]:
    """Cache a function's results by its arguments, as long as the process has the same JVM.

    Args:
        make: Makes columns, or an object that contains columns. Its arguments must be hashable, and its columns must
            refer to their inputs by name, not through a DataFrame.
    """

    @lru_cache(maxsize=_KEPT)
    def kept(_engine: Hashable, *args: Asked.args, **kwargs: Asked.kwargs) -> Made:
        return make(*args, **kwargs)

    @wraps(make)
    def again(*args: Asked.args, **kwargs: Asked.kwargs) -> Made:
        return kept(_engine(), *args, **kwargs)  # type: ignore[arg-type]

    return again


def _engine() -> Hashable:
    """The JVM in which new columns are created; None on Spark Connect, where the client holds them."""
    return None if is_remote() else cast("Hashable", jvm_gateway())
