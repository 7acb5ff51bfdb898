"""A picture of the ratios as SVG: a bar from 1 to the median, a line from the smallest to the largest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

_WIDTH, _LEFT, _RIGHT = 800, 190, 150
_ROW, _TOP, _BOTTOM = 28, 34, 30
_GOOD, _BAD, _INK, _FAINT = "#2f7d4f", "#b5533c", "#24292f", "#d0d7de"


def bars(ratios: Mapping[str, Mapping[str, Any]]) -> str:
    """The picture.

    Args:
        ratios: By figure: ``min``, ``median``, ``max``, and ``better`` (bigger or smaller).
    """
    low, high = _ends(ratios)
    height = _TOP + _ROW * len(ratios) + _BOTTOM

    def x(value: float) -> float:
        # Logarithmic: twice as fast and half as fast are as far from 1.
        share = (math.log2(value) - low) / (high - low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18">ratio, logarithmic; green is the good side of 1</text>',
    ]
    for power in range(math.ceil(low), math.floor(high) + 1):
        at, foot = x(2.0**power), height - _BOTTOM
        ink = _INK if power == 0 else _FAINT
        parts.append(f'<line x1="{at}" y1="{_TOP - 6}" x2="{at}" y2="{foot}" stroke="{ink}"/>')
        parts.append(f'<text x="{at}" y="{foot + 16}" text-anchor="middle">{2.0**power:g}</text>')
    for row, (key, ratio) in enumerate(ratios.items()):
        middle = _TOP + _ROW * row + _ROW / 2
        smallest, median, largest = (x(ratio[name]) for name in ("min", "median", "max"))
        is_good = (ratio["median"] >= 1) == (ratio["better"] == "bigger")
        start = min(x(1), median)
        parts += [
            f'<text x="{_LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(key)}</text>',
            f'<rect x="{start}" y="{middle - 7}" width="{round(abs(median - x(1)), 1)}" height="14" '
            f'fill="{_GOOD if is_good else _BAD}"/>',
            f'<line x1="{smallest}" y1="{middle}" x2="{largest}" y2="{middle}" stroke="{_INK}" stroke-width="2"/>',
            f'<text x="{_WIDTH - _RIGHT + 12}" y="{middle + 4}">{ratio["median"]:.2f}, {ratio["better"]} is better'
            "</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def _ends(ratios: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    """Return the powers of two at the ends of the scale. 1 is always between them."""
    values = [math.log2(ratio[name]) for ratio in ratios.values() for name in ("min", "max")]
    return min([-1.0, *values]) - 0.1, max([1.0, *values]) + 0.1
