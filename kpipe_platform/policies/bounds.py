"""Numbers that options may be. NaN compares false with everything, and so passes a test for what is out of bounds."""

from __future__ import annotations

import math


def is_positive(value: object) -> bool:
    """Whether it is a finite number above 0, for example of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def is_count(value: object, least: int) -> bool:
    """Whether it is a whole number, of so much at least."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
