"""What a service of this machine leaves for later commands: a small file, and a lock for those who change it."""

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

# A start with a download and a class archive takes about a minute; another command waits for longer.
_LOCK_DEADLINE_S = 300.0


class StateFolder:
    """The state of one service.

    Args:
        path: The folder; made when it is locked first.
        what: Name of the service in messages, for example ``broker``.
        busy_error: Class of the error that says that another command holds the lock.
    """

    def __init__(self, path: Path, what: str, *, busy_error: type[KpipeError] = EnvironmentSetupError) -> None:
        self.path = path
        self._what = what
        self._busy_error = busy_error
        self._file = path / "service.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who starts or stops the service.

        Raises:
            KpipeError: Another command does, and does not end.
        """
        try:
            private_folder(self.path)
            with FileLock(self.path / "service.lock", timeout=_LOCK_DEADLINE_S):
                yield
        except Timeout as error:
            msg = f"Another command has been starting or stopping the {self._what} for {_LOCK_DEADLINE_S:.0f} s."
            raise self._busy_error(msg, fix="wait for it, or end it") from error

    def read(self) -> dict[str, Any] | None:
        """What was written last; None where there is nothing, or no sense in it."""
        try:
            state = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            logger.warning("%s cannot be read: taken for absent", self._file)
            return None
        return dict(state)

    def write(self, state: Mapping[str, Any]) -> None:
        """Write the state; a reader sees the old one or the new one, never half of it."""
        write_private(self._file, json.dumps(dict(state), indent=1))

    def clear(self) -> None:
        """Forget the state; the lock stays."""
        self._file.unlink(missing_ok=True)
