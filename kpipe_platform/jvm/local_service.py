"""A local service that outlives the command that started it, and that later commands can find."""

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
    """Status of a service."""

    @property
    def state(self) -> str:
        """``running``, or another state."""

    @property
    def address(self) -> str | None:
        """Address for clients; None until clients can connect."""


class Server(Protocol):
    """Server process of a service."""

    def stop(self) -> None:
        """Stop the server."""


OptionsT = TypeVar("OptionsT")
StatusT = TypeVar("StatusT", bound=ServiceStatus)
ServerT = TypeVar("ServerT", bound=Server)


class LocalService(ABC, Generic[OptionsT, StatusT, ServerT]):
    """Starts, finds and stops the service of one state folder.

    Args:
        folder: The state folder of the service.
        what: Name of the service in messages, for example ``broker``.
        command: The command that stops the service, for messages.
        busy_error: Class of the error that is raised if another command is starting or stopping the service.
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
        """Return the current status of the service."""

    def start(self, options: OptionsT, *, progress: Progress | None = None) -> tuple[StatusT, bool]:
        """Start the service and leave it running.

        Args:
            options: Options of the service.
            progress: Called with a line of text for each step; details are indented.

        Returns:
            The status, and whether this call started the service; False if it was already running.

        Raises:
            ConfigError: The service is already running with different options.
            KpipeError: The service did not become ready, or a requirement is missing.
        """
        with self._state.locked():
            status = self.status()
            if status.state == "running":
                wanted = self._differences(status, options)
                if wanted:
                    raise self._already_running(status, f", but you requested {'; '.join(wanted)}")
                return status, False
            self._launch(options, detached=True, progress=progress)
            return self.status(), True

    @contextmanager
    def running(self, options: OptionsT, *, progress: Progress | None = None) -> Iterator[ServerT]:
        """Run the service for the duration of the ``with`` block; other processes can use `status` and `stop` on it.

        Args:
            options: Options of the service.
            progress: Called with a line of text for each step; details are indented.

        Raises:
            ConfigError: The service is already running.
            KpipeError: As for `start`.
        """
        with self._state.locked():
            status = self.status()
            if status.state == "running":
                raise self._already_running(status)
            server = self._launch(options, detached=False, progress=progress)
        try:
            yield server
        finally:
            server.stop()
            self._ended()
            self._state.clear()

    def is_wanted(self) -> bool:
        """Return whether the service was started and no stop was requested."""
        state = self._state.read()
        return state is not None and not state["stopping"]

    def stop(self) -> bool:
        """Stop the service.

        Returns:
            Whether there was a service to stop.
        """
        with self._state.locked():
            exists = self._state.read() is not None
            self._clear()
            return exists

    def _already_running(self, status: StatusT, wanted: str = "") -> ConfigError:
        msg = f"A {self._what} is already running at {status.address}{wanted}."
        return ConfigError(msg, fix=f"stop it first: {self._stop_command}")

    @abstractmethod
    def _differences(self, status: StatusT, options: OptionsT) -> list[str]:
        """Return the differences between the running service and the requested options, one phrase each."""

    @abstractmethod
    def _launch(self, options: OptionsT, *, detached: bool, progress: Progress | None) -> ServerT:
        """Start the service, and write its state."""

    @abstractmethod
    def _clear(self) -> None:
        """Stop the service and clear its state, also after a crash or an interrupted start."""

    def _ended(self) -> None:
        """Hook that runs after a foreground service has ended, before its state is cleared."""
