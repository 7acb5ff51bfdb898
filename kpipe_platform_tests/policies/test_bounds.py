"""Numbers that options may be."""

from __future__ import annotations

import math

import pytest

from kpipe_platform.policies.bounds import is_count, is_positive


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf, True, "1", None])
def test_not_above_zero(value: object) -> None:
    assert not is_positive(value)
    assert is_positive(1)
    assert is_positive(0.5)


@pytest.mark.parametrize("value", [0, 1.0, math.nan, True, "1", None])
def test_not_a_count(value: object) -> None:
    assert not is_count(value, 1)
    assert is_count(1, 1)
