"""Bar charts of counts in Markdown: an image if matplotlib is installed, otherwise text."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Sequence

_BARS = 20
_TEXT_WIDTH = 40
_NAME_CHARACTERS = 60


def bar_chart(counts: Sequence[tuple[str, int]], *, title: str) -> str:
    """Render a horizontal bar chart as Markdown.

    Args:
        counts: Name and count of each bar, the largest first. Of more than 20 bars, all after the first 19 become one.
        title: Title above the chart.

    Returns:
        An image with inline data, or a block of text.
    """
    shown = _bounded(counts)
    if importlib.util.find_spec("matplotlib") is None:
        return _as_text(shown, title)
    text = base64.b64encode(_as_picture(shown, title)).decode("ascii")
    return f"![{title}](data:image/png;base64,{text})"


def _bounded(counts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    shown = [(_one_line(name), count) for name, count in counts]
    if len(shown) <= _BARS:
        return shown
    rest = shown[_BARS - 1 :]
    return [*shown[: _BARS - 1], (f"{len(rest)} others", sum(count for _, count in rest))]


def _one_line(name: str) -> str:
    line = " ".join(name.split())
    return line if len(line) <= _NAME_CHARACTERS else line[: _NAME_CHARACTERS - 1] + "…"


def _as_text(counts: Sequence[tuple[str, int]], title: str) -> str:
    wide = max((len(name) for name, _ in counts), default=0)
    most = max((count for _, count in counts), default=0)
    # Every bar has at least one character, even for a small count.
    lines = [
        f"{name:<{wide}} {'█' * max(round(_TEXT_WIDTH * count / most), 1)} {count:,}" for name, count in counts if most
    ]
    return "\n".join([f"{title}", "", "```text", *lines, "```"])


def _as_picture(counts: Sequence[tuple[str, int]], title: str) -> bytes:
    # pyplot is avoided: it keeps global state and searches for a window system.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # Bars are drawn from the bottom up. matplotlib would render text between two dollar signs, as in names of Java
    # classes, as a formula.
    names = [name.replace("$", r"\$") for name, _ in reversed(counts)]
    values = [count for _, count in reversed(counts)]
    figure = Figure(figsize=(8, 0.35 * len(counts) + 1), layout="constrained")
    axes = figure.add_subplot()
    places = list(range(len(names)))
    bars = axes.barh(places, values, color="#c0392b")
    axes.set_yticks(places, names)
    axes.bar_label(bars, labels=[f"{value:,}" for value in values], padding=3)
    axes.margins(x=0.1)
    axes.set_title(title.replace("$", r"\$"))
    axes.tick_params(left=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right", "left"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
