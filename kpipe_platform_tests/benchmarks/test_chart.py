"""The picture of the ratios."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from benchmarks.chart import bars

SVG = "{http://www.w3.org/2000/svg}"


def ratio(median: float, better: str = "bigger") -> dict[str, Any]:
    return {"min": median / 1.1, "median": median, "max": median * 1.1, "better": better}


def drawn(ratios: dict[str, dict[str, Any]]) -> list[ElementTree.Element]:
    """The bars, without the background."""
    return ElementTree.fromstring(bars(ratios)).findall(f"{SVG}rect")[1:]


def test_twice_and_half_are_as_far_from_one_on_either_side() -> None:
    fast, slow = drawn({"fast": ratio(2.0), "slow": ratio(0.5)})

    assert float(fast.attrib["width"]) == pytest.approx(float(slow.attrib["width"]), abs=0.2)
    one = float(fast.attrib["x"])
    assert float(slow.attrib["x"]) + float(slow.attrib["width"]) == pytest.approx(one, abs=0.2)


def test_the_colour_says_which_side_is_the_good_one() -> None:
    names = {"a": ratio(2.0), "b": ratio(2.0, "smaller"), "c": ratio(0.5), "d": ratio(0.5, "smaller")}

    good, bad, also_bad, also_good = (bar.attrib["fill"] for bar in drawn(names))

    assert good == also_good != bad == also_bad


def test_every_figure_fits_into_the_picture_and_is_named() -> None:
    text = bars({"tiny": ratio(0.01), "huge <&>": ratio(40.0)})

    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for bar in root.findall(f"{SVG}rect"):
        assert 0 <= float(bar.get("x", "0")) <= float(bar.get("x", "0")) + float(bar.attrib["width"]) <= width
        assert float(bar.get("y", "0")) + float(bar.attrib["height"]) <= height
    labels = [label.text for label in root.findall(f"{SVG}text")]
    assert {"tiny", "huge <&>"} < set(labels)
    assert "40.00, bigger is better" in labels


def test_one_is_in_the_picture_where_all_is_on_one_side() -> None:
    (bar,) = drawn({"cold": ratio(16.0)})

    assert float(bar.attrib["width"]) > 100
