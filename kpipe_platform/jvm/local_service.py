"""A service of this machine that outlives the command which started it, and is found again by later ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from kpipe_platform.errors import ConfigError, EnvironmentSetupError, KpipeError
from kpipe_platform.jvm.state_folder import StateFolder

__all__ = ["LocalService", "Progress"]

Progress = Callable[[str], None]


class ServiceStatus(Protocol):
    """What is known about a service."""

    @property
    def state(self) -> str:
        """``running``, or what else."""

    @property
    def address(self) -> str | None:
        """Where clients find it; None until they can."""


class Server(Protocol):
    """What a service runs."""

    def stop(self) -> None:
        """Stop it."""


OptionsT = TypeVar("OptionsT")
StatusT = TypeVar("StatusT", bound=ServiceStatus)
ServerT = TypeVar("ServerT", bound=Server)


class LocalService(ABC, Generic[OptionsT, StatusT, ServerT]):
    """Starts, finds again and stops the service of one state folder.

    Args:
        folder: Where it is remembered.
        what: Name of the service in messages, for example ``broker``.
        command: The command that stops it.
        busy_error: Class of the error that says that another command starts or stops it.
    """

    def __init__(
        self, folder: Path, what: str, command: str, *, busy_error: type[KpipeError] = EnvironmentSetupError
    ) -> None:
        self.folder = folder
        self._what = what
        self._stop_command = command
        self._state = StateFolder(folder, what, busy_error=busy_error)

    @abstractmethod
    def status(self) -> StatusT:
        """Look whether it runs."""

    def start(self, options: OptionsT, *, progress: Progress | None = None) -> tuple[StatusT, bool]:
        """Start it and leave it running.

        Args:
            options: How to start it.
            progress: Called with a line of text for each step; details are indented.

        Returns:
            The status, and whether this call started it; False when it was running already.

        Raises:
            ConfigError: It runs already, otherwise than asked for.
            KpipeError: It did not become ready, or something that it needs is missing.
        """
        with self._state.locked():
            status = self.status()
            if status.state == "running":
                wanted = self._differences(status, options)
                if wanted:
                    raise self._runs_already(status, f"; you want {'; '.join(wanted)}")
                return status, False
            self._launch(options, detached=True, progress=progress)
            return self.status(), True

    @contextmanager
    def running(self, options: OptionsT, *, progress: Progress | None = None) -> Iterator[ServerT]:
        """Run it for as long as the block; `status` and `stop` of other processes see it too.

        Args:
            options: How to start it.
            progress: Called with a line of text for each step; details are indented.

        Raises:
            ConfigError: It runs already.
            KpipeError: As for `start`.
        """
        with self._state.locked():
            status = self.status()
            if status.state == "running":
                raise self._runs_already(status)
            server = self._launch(options, detached=False, progress=progress)
        try:
            yield server
        finally:
            server.stop()
            self._ended()
            self._state.clear()

    def is_wanted(self) -> bool:
        """Tell whether it was started and nobody has asked to stop it."""
        state = self._state.read()
        return state is not None and not state["stopping"]

    def stop(self) -> bool:
        """Stop it.

        Returns:
            Whether there was one.
        """
        with self._state.locked():
            found = self._state.read() is not None
            self._clear()
            return found

    def _runs_already(self, status: StatusT, wanted: str = "") -> ConfigError:
        msg = f"A {self._what} runs already at {status.address}{wanted}."
        return ConfigError(msg, fix=f"stop it first: {self._stop_command}")

    @abstractmethod
    def _differences(self, status: StatusT, options: OptionsT) -> list[str]:
        """How what runs differs from what is asked for, a phrase each."""

    @abstractmethod
    def _launch(self, options: OptionsT, *, detached: bool, progress: Progress | None) -> ServerT:
        """Start it, and write the state."""

    @abstractmethod
    def _clear(self) -> None:
        """Stop what runs, and forget it; also what is left of one that crashed or whose start was broken off."""

    def _ended(self) -> None:
        """After the end of one in the foreground, before it is forgotten."""
