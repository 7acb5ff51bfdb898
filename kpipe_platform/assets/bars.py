"""Counts as a bar chart in Markdown: a picture where matplotlib is installed, text where it is not."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Sequence

_BARS = 20
_TEXT_WIDTH = 40
_NAME_CHARACTERS = 60


def bar_chart(counts: Sequence[tuple[str, int]], *, title: str) -> str:
    """Horizontal bars as Markdown.

    Args:
        counts: Name and count of each bar, the largest first. What is behind the first 19 becomes one bar.
        title: Text above.

    Returns:
        An image with the picture inside, or a block of text.
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
    # A count above none has a bar, however short.
    lines = [
        f"{name:<{wide}} {'█' * max(round(_TEXT_WIDTH * count / most), 1)} {count:,}" for name, count in counts if most
    ]
    return "\n".join([f"{title}", "", "```text", *lines, "```"])


def _as_picture(counts: Sequence[tuple[str, int]], title: str) -> bytes:
    # Without pyplot there is no global state and no window system to look for.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # From the bottom up; a pair of dollar signs, as in names of Java classes, would be set as mathematics.
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
