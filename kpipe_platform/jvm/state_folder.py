"""State that a local service leaves for later commands: a small file, and a lock for changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kpipe_platform.errors import EnvironmentSetupError, KpipeError
from kpipe_platform.jvm.private_files import private_folder, write_private

__all__ = ["StateFolder"]

logger = logging.getLogger(__name__)

# A start with a download and a class archive takes about a minute, so other commands wait longer than that.
_LOCK_DEADLINE_S = 300.0


class StateFolder:
    """The state of one service.

    Args:
        path: The folder; created when it is first locked.
        what: Name of the service in messages, for example ``broker``.
        busy_error: Class of the error that is raised if another command holds the lock.
    """

    def __init__(self, path: Path, what: str, *, busy_error: type[KpipeError] = EnvironmentSetupError) -> None:
        self.path = path
        self._what = what
        self._busy_error = busy_error
        self._file = path / "service.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for starting or stopping the service.

        Raises:
            KpipeError: Another command still holds the lock after 300 s.
        """
        try:
            private_folder(self.path)
            with FileLock(self.path / "service.lock", timeout=_LOCK_DEADLINE_S):
                yield
        except Timeout as error:
            msg = f"Another command has been starting or stopping the {self._what} for {_LOCK_DEADLINE_S:.0f} s."
            raise self._busy_error(msg, fix="wait until it ends, or stop it") from error

    def read(self) -> dict[str, Any] | None:
        """Return the state that was last written; None if there is none or it cannot be parsed."""
        try:
            state = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            logger.warning("ignoring %s: it is not valid JSON", self._file)
            return None
        return dict(state)

    def write(self, state: Mapping[str, Any]) -> None:
        """Write the state atomically: a reader gets either the old state or the new one."""
        write_private(self._file, json.dumps(dict(state), indent=1))

    def clear(self) -> None:
        """Delete the state, but not the lock file."""
        self._file.unlink(missing_ok=True)
