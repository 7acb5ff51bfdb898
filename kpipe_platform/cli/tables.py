"""Tables as plain aligned text: the same on a terminal and in a pipe, never cut to a width."""

from __future__ import annotations

from collections.abc import Sequence

from kpipe_platform.cli.output import print_line

__all__ = ["print_table"]


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their head; numbers to the right, None as ``-``."""
    texts = [list(head), *(["-" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    right = [any(isinstance(row[i], int) for row in rows) for i in range(len(head))]
    for row in texts:
        cells = [c.rjust(w) if to_right else c.ljust(w) for c, w, to_right in zip(row, widths, right, strict=True)]
        print_line("  ".join(cells).rstrip())
