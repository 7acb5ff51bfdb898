"""Peak memory of the processes of a run, from /proc; nothing is found where there is none."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

_PROC = Path("/proc")
_EVERY_S = 0.05


class PeakMemory:
    """Watches this process and Spark's below it, from entry to exit.

    Attributes:
        peaks: MiB by name: ``driver_rss_mib``, this process, in which Dagster and the plan run; ``worker_rss_mib``,
            the largest of Spark's Python workers; ``jvm_rss_mib``, Spark's JVM. Empty where there is no /proc.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            for name, mib in memory_of(os.getpid()).items():
                self.peaks[name] = max(self.peaks.get(name, 0.0), mib)
            if self._over.wait(_EVERY_S):
                return


def memory_of(pid: int) -> dict[str, float]:
    """MiB that a driver, its JVM and the largest Python worker below that hold now; see ``PeakMemory.peaks``."""
    found: dict[str, float] = {}

    def note(name: str, of: int) -> None:
        mib = _rss_mib(of)
        if mib:
            found[name] = max(found.get(name, 0.0), mib)

    note("driver_rss_mib", pid)
    for child in _children(pid):
        if _command(child).endswith("java"):
            note("jvm_rss_mib", child)
            for worker in _below(child):
                if "python" in Path(_command(worker)).name:
                    note("worker_rss_mib", worker)
    return found


def _below(pid: int) -> list[int]:
    children = _children(pid)
    return children + [below for child in children for below in _below(child)]


# A process may end between two looks at it: then it holds nothing.


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass
    return found


def _command(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def _rss_mib(pid: int) -> float:
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
