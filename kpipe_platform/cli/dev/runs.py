"""Messages of `kpipe dev` about the runs that it waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

__all__ = ["ActiveRuns"]

logger = logging.getLogger(__name__)


class ActiveRuns:
    """Reads the active runs, and reports once which they are and once when all have finished.

    Args:
        home: Dagster's home folder.
        drain_s: Maximum wait for active runs, seconds.
        say: Shows a line on the terminal.
    """

    def __init__(self, home: Path, drain_s: float, say: Callable[[str], None]) -> None:
        self._home = home
        self._drain_s = drain_s
        self._say = say
        self._reported = False
        self._runs: tuple[str, ...] = ()

    def runs(self) -> tuple[str, ...]:
        """Read the runs that are active now, and report changes."""
        before, self._runs = self._runs, self._read()
        if not self._reported:
            self._reported = True
            self._report_first()
        elif before and not self._runs:
            self._say("All runs have finished. Stopping Dagster and Kafka")
        return self._runs

    def report_canceling(self, *, late: bool) -> None:
        """Report that the active runs are being canceled.

        Args:
            late: Whether the reason is the deadline, and not a second signal.
        """
        if self._runs:
            why = f"Not finished within {self._drain_s:g} s. " if late else ""
            self._say(
                f"{why}Canceling {_count(self._runs)}: Spark jobs are canceled, transactions are aborted, and offsets "
                "do not move (press Ctrl-C again to kill)"
            )

    def _report_first(self) -> None:
        if not self._runs:
            self._say("No active runs. Stopping Dagster and Kafka")
            return
        self._say(
            f"No new runs will start. Waiting up to {self._drain_s:g} s for {_count(self._runs)} "
            f"(press Ctrl-C again to cancel {'them' if len(self._runs) > 1 else 'it'})"
        )
        for run in self._runs:
            self._say(f"  {run}")

    def _read(self) -> tuple[str, ...]:
        # Imported here: the import of Dagster takes a second, and nothing else in this process needs it.
        from kpipe_platform.partitions.instance import unfinished_runs

        try:
            unfinished = unfinished_runs(self._home)
        except Exception as error:  # noqa: BLE001  # a storage error must not prevent the shutdown
            logger.warning("cannot read the active runs from Dagster's storage: %s", error)
            return self._runs or ("unknown: Dagster's storage cannot be read",)
        if unfinished.queued and not self._reported:
            queued = f"{unfinished.queued:,} queued run{'s' if unfinished.queued > 1 else ''}"
            self._say(f"{queued} will start with the next `kpipe dev`")
        return unfinished.active


def _count(runs: tuple[str, ...]) -> str:
    return f"{len(runs)} active run{'s' if len(runs) > 1 else ''}"
