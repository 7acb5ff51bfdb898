"""Tables as plain aligned text that is never truncated, and the status of a service in color."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kpipe_platform.cli.output import print_line

__all__ = ["print_status", "print_table"]

_COLORS = {"running": "green", "starting": "yellow", "degraded": "yellow", "crashed": "red"}


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows below a header: numbers aligned to the right, None as ``-``."""
    texts = [list(head), *(["-" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    right = [any(isinstance(row[i], int) for row in rows) for i in range(len(head))]
    for row in texts:
        cells = [c.rjust(w) if to_right else c.ljust(w) for c, w, to_right in zip(row, widths, right, strict=True)]
        print_line("  ".join(cells).rstrip())


def print_status(state: str, facts: Iterable[tuple[str, str | None]]) -> None:
    """Print the state of a service in color, and other facts about it below."""
    # Imported here because only the status of a service needs rich.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("state", Text(state, style=_COLORS.get(state, "")))
    for name, value in facts:
        table.add_row(name, value)
    Console().print(table)
