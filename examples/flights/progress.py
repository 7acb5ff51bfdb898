"""Progress of the job on the console: a bar for a long step, its partitions, and a line for each finished step."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from kpipe_platform.observability import events

# Without a terminal, a long step prints its progress at this interval instead of a bar.
_REPORT_INTERVAL_S = 10.0


@dataclass(frozen=True)
class StepDone:
    """A finished step.

    Args:
        name: Name of the step.
        seconds: Duration.
        records: Number of processed records; None if the step processes no records.
    """

    name: str
    seconds: float
    records: int | None = None

    @property
    def rate(self) -> float | None:
        """Records per second."""
        return None if self.records is None or not self.seconds else self.records / self.seconds


class Step:
    """A step in progress.

    Attributes:
        records: Number of records processed so far; None if unknown.
        seconds: Duration, if it differs from that of the ``with`` block.
    """

    def __init__(self, name: str, total: int | None, console: Console, show: Callable[[str, int | None], None]) -> None:
        self.name = name
        self.records: int | None = None
        self.seconds: float | None = None
        self._total = total
        self._console = console
        self._show = show
        self._reported_at = time.monotonic()

    def took(self, seconds: float) -> None:
        """Set the duration of work that was done in the background, before or during this step."""
        self.seconds = seconds

    def at(self, records: int) -> None:
        """Set the number of processed records."""
        self.records = records
        self._update(self.name)

    def add(self, records: int) -> None:
        """Add to the number of processed records."""
        self.at((self.records or 0) + records)

    def say(self, text: str) -> None:
        """Show what the step is doing now."""
        self._update(f"{self.name}: {text}")

    def note(self, text: str) -> None:
        """Print a line that stays on the console."""
        self._console.print(f"  {escape(text)}", soft_wrap=True)

    def _update(self, text: str) -> None:
        self._show(text, self.records)
        if not self._console.is_terminal and time.monotonic() - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = time.monotonic()
            progress = (
                "" if self.records is None else f" {self.records:,}" + (f" of {self._total:,}" if self._total else "")
            )
            self._console.print(f"  ... {escape(text)}{progress}", soft_wrap=True)


class PartitionProgress(logging.Handler):
    """Shows the partition events that kpipe logs: the offsets that a run plans, and the records that it committed.

    Use it as a context manager.

    Args:
        step: The step in progress.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(logging.INFO)
        self._step = step
        self._logger = logging.getLogger(events.__name__)

    def __enter__(self) -> None:
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        """Show one event."""
        event = json.loads(record.getMessage())
        where = f"{event['topic']} partition {event['partition']}"
        if event["event"] == "started":
            self._step.note(f"{where}: offsets {event['start']:,} to {event['end']:,} planned")
        elif event["event"] == "completed":
            self._step.add(event["read"])
            self._step.note(f"{where}: {event['read']:,} records committed")


class Steps:
    """Shows steps on a console and remembers them for the summary.

    Args:
        console: Console to print to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.done: list[StepDone] = []

    @contextmanager
    def step(self, name: str, *, total: int | None = None) -> Iterator[Step]:
        """Show a step for the duration of the ``with`` block. If it fails, no final line is printed.

        Args:
            name: Name of the step, as a phrase.
            total: Number of records to process, for a bar.
        """
        began = time.monotonic()
        with self._bar(bar=total is not None) as bar:
            task = bar.add_task(escape(name), total=total)
            step = Step(name, total, self.console, _shower(bar, task))
            if not self.console.is_terminal and total is not None:
                self.console.print(f"{escape(name)}: {total:,} records", soft_wrap=True)
            yield step
        done = StepDone(name, step.seconds or time.monotonic() - began, step.records)
        self.done.append(done)
        text = f"[green]done[/]  {escape(name):<34} {done.seconds:7.1f} s"
        if done.records is not None:
            text += f"  {done.records:>9,} records"
        if done.rate:
            text += f"  {done.rate:>8,.0f} records/s"
        self.console.print(text, soft_wrap=True)

    def _bar(self, *, bar: bool) -> Progress:
        counted = [BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f}")] if bar else []
        columns = [SpinnerColumn(), TextColumn("{task.description}"), *counted, TimeElapsedColumn()]
        return Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)


def _shower(bar: Progress, task: TaskID) -> Callable[[str, int | None], None]:
    def show(text: str, records: int | None) -> None:
        bar.update(task, description=escape(text), completed=records or 0)

    return show
