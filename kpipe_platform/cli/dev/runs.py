"""Messages of `kpipe dev` about the runs that it waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

__all__ = ["Awaited"]

logger = logging.getLogger(__name__)


class Awaited:
    """The runs at work, told once when they are first looked at and once when they are finished.

    Args:
        home: Dagster's home.
        drain_s: How long they are waited for, seconds.
        say: Shows a line.
    """

    def __init__(self, home: Path, drain_s: float, say: Callable[[str], None]) -> None:
        self._home = home
        self._drain_s = drain_s
        self._say = say
        self._told = False
        self._runs: tuple[str, ...] = ()

    def runs(self) -> tuple[str, ...]:
        """Look at the runs that are at work now."""
        before, self._runs = self._runs, self._look()
        if not self._told:
            self._told = True
            self._say_first()
        elif before and not self._runs:
            self._say("The runs are finished. Stopping Dagster and Kafka")
        return self._runs

    def say_ending(self, *, late: bool) -> None:
        """Say that what is at work is ended.

        Args:
            late: Because the time is up, and not because somebody asked.
        """
        if self._runs:
            why = f"Not finished within {self._drain_s:g} s. " if late else ""
            self._say(
                f"{why}Ending {_count(self._runs)}: Spark jobs are canceled, transactions aborted, and offsets stay "
                "where they are (Ctrl-C again: kill)"
            )

    def _say_first(self) -> None:
        if not self._runs:
            self._say("Stopping Dagster and Kafka: no run is at work")
            return
        self._say(
            f"No further run is started. Waiting up to {self._drain_s:g} s for {_count(self._runs)} "
            f"(Ctrl-C again: end {'them' if len(self._runs) > 1 else 'it'} now)"
        )
        for run in self._runs:
            self._say(f"  {run}")

    def _look(self) -> tuple[str, ...]:
        # Imported here: the import of Dagster takes a second, and nothing else in this process needs it.
        from kpipe_platform.partitions.unfinished import unfinished_runs

        try:
            found = unfinished_runs(self._home)
        except Exception as error:  # noqa: BLE001  # a storage error must not prevent the shutdown
            logger.warning("the runs at work are not known: %s", error)
            return self._runs or ("runs that could not be looked up",)
        if found.queued and not self._told:
            self._say(
                f"{found.queued:,} queued run{'s' if found.queued > 1 else ''} will start with the next `kpipe dev`"
            )
        return found.at_work


def _count(runs: tuple[str, ...]) -> str:
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''} at work"
