"""The warm Spark of `kpipe dev`: started while Kafka starts, restarted if it ends unexpectedly, stopped at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path

from kpipe_platform.errors import KpipeError
from kpipe_platform.jvm.ports import LOOPBACK, free_port
from kpipe_platform.kafka.client.calls import run_in_thread
from kpipe_platform.spark.connect.server import ConnectServer, has_client

__all__ = ["CHOSEN_BY", "DevEngine", "warm_engine"]

REMOTE = "KPIPE_SPARK_REMOTE"
CHOSEN_BY = (REMOTE, "KPIPE_SPARK_MASTER")
"""Environment variables that choose another engine; if one is set, `kpipe dev` starts none."""


_POLL_S = 0.2


class DevEngine:
    """A Spark Connect server that starts in the background, and is restarted on the same port.

    Args:
        server: The server.
        remote: Its address, which is known before it has started.
        say: Shows a line on the terminal.
    """

    def __init__(self, server: ConnectServer, remote: str, say: Callable[[str], None]) -> None:
        self.remote = remote
        self._server = server
        self._say = say
        self._lost = False
        self._started: Future[None] = run_in_thread(server.start)

    def check(self) -> None:
        """Raise the error if the server could not be started.

        Raises:
            KpipeError: The server could not be started.
        """
        if self._started.done():
            self._started.result()

    def wait(self) -> None:
        """Wait until the server has started.

        Raises:
            KpipeError: The server could not be started.
        """
        self._started.result()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point the platform to the server."""
        return {REMOTE: self.remote}

    def restart_if_ended(self) -> None:
        """Restart the server if it has ended. If that fails, do not try again."""
        if self._lost or self._server.is_running():
            return
        self._say(f"Spark stopped unexpectedly; its log is {self._server.log_path}. Restarting it")
        try:
            self._server.start()
        except KpipeError as error:
            self._lost = True
            self._say(f"Spark cannot be restarted, so runs will fail: {error}")

    def stop(self) -> None:
        """Stop the server, also while it starts."""
        while not self._started.done():
            self._server.stop()
            wait([self._started], _POLL_S)
        self._server.stop()


@contextmanager
def warm_engine(
    folder: Path,
    environment: Mapping[str, str],
    *,
    wanted: bool,
    say: Callable[[str], None],
    progress: Callable[[str], None],
) -> Iterator[DevEngine | None]:
    """Run an engine for the duration of the ``with`` block. It starts in the background.

    Args:
        folder: Folder for its log and temporary files.
        environment: Environment of this process. If it chooses an engine, none is started.
        wanted: Whether to start an engine.
        say: Shows a line on the terminal.
        progress: Called with a line of text for each step; details are indented.

    Yields:
        The engine; None if none was started.
    """
    if not wanted or any(environment.get(name) for name in CHOSEN_BY):
        yield None
        return
    if not has_client():
        say("Each run starts its own Spark. To share a warm one: pip install 'kpipe-platform[connect]'")
        yield None
        return
    port = free_port()
    server = ConnectServer(folder, port=port, progress=progress)
    engine = DevEngine(server, f"sc://{LOOPBACK}:{port}", say)
    try:
        yield engine
    finally:
        engine.stop()
