"""A bar chart as Markdown, with matplotlib and without."""

from __future__ import annotations

import base64
import importlib.util

import pytest

from kpipe_platform.assets.bars import bar_chart

COUNTS = [("stage · bad_cast", 1_234), ("decode_value · wrong_type", 617), ("rare", 1)]


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )


def picture(markdown: str) -> bytes:
    head, _, data = markdown.removesuffix(")").partition("base64,")
    assert head == "![Reasons](data:image/png;"
    return base64.b64decode(data, validate=True)


def test_a_picture() -> None:
    pytest.importorskip("matplotlib")
    made = picture(bar_chart(COUNTS, title="Reasons"))
    assert made.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(made[16:20], "big") == 800
    taller = picture(bar_chart([*COUNTS, ("more", 1)], title="Reasons"))
    assert int.from_bytes(taller[20:24], "big") > int.from_bytes(made[20:24], "big")


def test_names_that_matplotlib_would_set_as_mathematics_or_that_repeat() -> None:
    pytest.importorskip("matplotlib")
    strange = [("org.a.Outer$Inner$x_{", 3), ("same", 2), ("same", 1), ("a\nb", 1)]
    assert picture(bar_chart(strange, title="Reasons")).startswith(b"\x89PNG")


@pytest.mark.usefixtures("without_matplotlib")
def test_text_where_there_is_no_matplotlib() -> None:
    lines = bar_chart(COUNTS, title="Reasons").splitlines()
    assert lines[:3] == ["Reasons", "", "```text"]
    assert lines[3:] == [
        f"stage · bad_cast          {'█' * 40} 1,234",
        f"decode_value · wrong_type {'█' * 20} 617",
        "rare                      █ 1",
        "```",
    ]


@pytest.mark.usefixtures("without_matplotlib")
def test_many_bars_and_long_names_are_bounded() -> None:
    lines = bar_chart([(f"reason {n}\n" + "x" * 100, 30 - n) for n in range(30)], title="Reasons").splitlines()[3:-1]
    assert len(lines) == 20
    assert lines[0].startswith("reason 0 x")
    assert lines[-1].startswith("11 others ")
    assert lines[-1].endswith(f" {sum(30 - n for n in range(19, 30))}")
    assert max(map(len, lines)) < 120


@pytest.mark.usefixtures("without_matplotlib")
def test_no_bars() -> None:
    assert bar_chart([], title="Reasons") == "Reasons\n\n```text\n```"
