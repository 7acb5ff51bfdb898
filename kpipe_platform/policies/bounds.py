"""Checks of numeric options that also refuse NaN, for which a plain comparison with a bound is always false."""

from __future__ import annotations

import math


def is_positive(value: object) -> bool:
    """Return whether the value is a finite number above 0, for example of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def is_count(value: object, least: int) -> bool:
    """Return whether the value is an integer of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
