"""Output of commands: data goes to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from kpipe_platform.errors import KpipeError

__all__ = ["print_error", "print_hint", "print_json", "print_line", "progress_lines"]


def print_line(text: str) -> None:
    """Print one line of data."""
    typer.echo(text)


def print_json(data: Any) -> None:
    """Print data as JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_hint(text: str) -> None:
    """Print a message for people, to standard error."""
    typer.secho(text, err=True, dim=True)


def print_error(error: KpipeError) -> None:
    """Print an error and how to fix it."""
    typer.echo(typer.style("Error: ", fg="red", bold=True) + str(error), err=True)


@contextmanager
def progress_lines() -> Iterator[Callable[[str], None]]:
    """Show the steps of long work.

    Yields:
        A function that takes a line for each step. Indented lines are details: a terminal shows the latest one
        in place, anything else does not show them.
    """
    if not sys.stderr.isatty():
        yield lambda line: None if line.startswith(" ") else print_hint(line)
        return
    # Imported here because only commands with progress output need rich.
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status("") as status:

        def show(line: str) -> None:
            if not line.startswith(" "):
                console.print(escape(line), style="dim", highlight=False)
            status.update(escape(line.strip()))

        yield show
