"""The warm Spark of `kpipe dev`: started before Dagster, restarted if it ends unexpectedly, and stopped at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kpipe_platform.errors import KpipeError
from kpipe_platform.jvm.ports import free_port
from kpipe_platform.spark.connect.server import ConnectServer, has_client

__all__ = ["CHOSEN_BY", "DevEngine", "warm_engine"]

REMOTE = "KPIPE_SPARK_REMOTE"
CHOSEN_BY = (REMOTE, "KPIPE_SPARK_MASTER")
"""Environment variables by which somebody has chosen an engine already."""


class DevEngine:
    """A Spark Connect server on a port that stays the same.

    Args:
        server: The server; started.
        say: Shows a line to the person at the terminal.
    """

    def __init__(self, server: ConnectServer, say: Callable[[str], None]) -> None:
        self._server = server
        self._say = say
        self._lost = False

    @property
    def environment(self) -> dict[str, str]:
        """What tells the platform its address."""
        return {REMOTE: self._server.remote}

    @property
    def remote(self) -> str:
        """Its address."""
        return self._server.remote

    def look(self) -> None:
        """Start it again when it ended; once only where that fails."""
        if self._lost or self._server.is_running():
            return
        self._say(f"Spark ended by itself; its log is {self._server.log_path}. Starting it again")
        try:
            self._server.start()
        except KpipeError as error:
            self._lost = True
            self._say(f"Spark does not start any more, so runs fail: {error}")


@contextmanager
def warm_engine(
    folder: Path,
    environment: Mapping[str, str],
    *,
    wanted: bool,
    say: Callable[[str], None],
    progress: Callable[[str], None],
) -> Iterator[DevEngine | None]:
    """Run an engine for as long as the block.

    Args:
        folder: For its log and temporary files.
        environment: This process's own; where it chooses an engine, none is started.
        wanted: False: none is started either.
        say: Shows a line to the person at the terminal.
        progress: Called with a line of text for each step; details are indented.

    Yields:
        The engine; None where there is none.
    """
    if not wanted or any(environment.get(name) for name in CHOSEN_BY):
        yield None
        return
    if not has_client():
        say("Each run starts a Spark of its own; for a warm one: pip install 'kpipe-platform[connect]'")
        yield None
        return
    server = ConnectServer(folder, port=free_port(), progress=progress)
    server.start()
    try:
        yield DevEngine(server, say)
    finally:
        server.stop()
