"""Sessions on Spark Connect servers: one per server and settings, checked before use, released when unused.

Opening a session takes about 20 ms. If it is not released, its state stays on the server for an hour.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession, is_remote

from kpipe_platform.errors import ConfigError, EngineUnavailableError
from kpipe_platform.spark._compat import asks_for_another_token, connect_builder, has_own_spark, retry_briefly
from kpipe_platform.spark.connect.token import TOKEN_VARIABLE, USUAL_PORT, token_for, without_token
from kpipe_platform.spark.engine.settings import EngineSettings, local_tasks

__all__ = ["attach", "detach", "is_reachable", "remote_of", "tasks_of"]

logger = logging.getLogger(__name__)

_REACH_S = 5.0
# A session that was checked longer ago than this is checked again before use (3 ms), seconds.
_TRUSTED_S = 1.0
# With these settings a client retries for five seconds if a server is gone.
_RETRIES = 5
_BACKOFF_MAX_MS = 2_000
_SPLITS = re.compile(r"splits=(?:Some\()?(\d+)")
_START = "start one: kpipe spark start; or correct SparkEngine(remote=...)"

_Key = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass
class _Attached:
    session: Any
    remote: str
    checked_s: float
    holders: set[object] = field(default_factory=set)
    tasks: int | None = None


_attached: dict[_Key, _Attached] = {}
_lock = threading.RLock()


def attach(settings: EngineSettings, config: dict[str, str], holder: object) -> SparkSession:
    """Get this process's session on the server. Opens one if there is none, or if the server was restarted.

    Args:
        settings: Engine settings with the server's address.
        config: Spark settings of the session.
        holder: Owner that keeps the session open until `detach`.

    Raises:
        ConfigError: A package is missing, the token is wrong, or this process runs its own Spark.
        EngineUnavailableError: The server does not respond, or refuses the session.
    """
    remote = settings.remote or ""
    key = (remote, settings.app_name, tuple(sorted(config.items())))
    with _lock:
        found = _attached.get(key)
        if found is not None and not _is_there(found):
            logger.warning(
                "the session on %s no longer exists, as after a restart of the server; opening a new one",
                without_token(remote),
            )
            del _attached[key]
            _close(found)
            found = None
        if found is None:
            found = _attached[key] = _Attached(_open(remote, settings.app_name, config), remote, time.monotonic())
        found.holders.add(holder)
        session: SparkSession = found.session
        return session


def detach(holder: object) -> None:
    """Remove a holder from all sessions. Sessions without holders are released on their servers."""
    with _lock:
        for key, found in list(_attached.items()):
            found.holders.discard(holder)
            if not found.holders:
                del _attached[key]
                _close(found)


def tasks_of(session: SparkSession) -> int | None:
    """Number of tasks that the session's server runs at once; None if unknown."""
    with _lock:
        found = next((each for each in _attached.values() if each.session is session), None)
        if found is not None and found.tasks is not None:
            return found.tasks
    tasks = _ask_tasks(session)
    if found is not None:
        found.tasks = tasks
    return tasks


def remote_of(session: Any) -> str | None:
    """Address of the session's Spark Connect server, without its port; None if Spark runs in this process."""
    return f"sc://{session.client.host}" if is_remote() else None


def is_reachable(session: SparkSession) -> bool:
    """Whether the session's server can be reached. True for a session that `attach` did not open."""
    with _lock:
        found = next((each for each in _attached.values() if each.session is session), None)
    return found is None or (not found.session.is_stopped and _reach(found.remote) is None)


def _open(remote: str, app_name: str, config: dict[str, str]) -> Any:
    shown = without_token(remote)
    if has_own_spark():
        msg = f"this process already runs its own Spark session, so it cannot use the server at {shown}"
        raise ConfigError(msg, fix="give all SparkEngines of a process the same remote, or give none of them a remote")
    failure = _reach(remote)
    if failure is not None:
        msg = f"no Spark Connect server answers at {shown}: {failure}"
        raise EngineUnavailableError(msg, fix=_START, remote=shown)
    try:
        builder = _builder(remote).appName(app_name)
        for name, value in config.items():
            builder = builder.config(name, value)
        session: Any = builder.create()
        retry_briefly(session, _RETRIES, _BACKOFF_MAX_MS)
    except ImportError as error:
        msg = f"the Spark Connect client needs a package that is missing: {error}"
        raise ConfigError(msg, fix="pip install 'kpipe-platform[connect]'") from error
    except Exception as error:
        if asks_for_another_token(error):
            msg = f"the Spark Connect server at {shown} requires a token that this process does not have"
            fix = "run as the user who started it, with the same KPIPE_STATE_DIR; or set "
            raise ConfigError(msg, fix=f"{fix}{TOKEN_VARIABLE} to the token of the server") from error
        msg = f"the Spark Connect server at {shown} did not create a session: {str(error).strip().splitlines()[0]}"
        fix = f"see its log (kpipe spark status); or {_START}"
        raise EngineUnavailableError(msg, fix=fix, remote=shown) from error
    logger.info("attached to %s, session %s", shown, session.session_id)
    return session


def _builder(remote: str) -> Any:
    token = token_for(remote)
    if token is None:
        return SparkSession.builder.remote(remote)
    from kpipe_platform.spark.engine.loopback_channel import LoopbackChannel

    return connect_builder(LoopbackChannel(remote, token))


def _is_there(found: _Attached) -> bool:
    if found.session.is_stopped:
        return False
    if time.monotonic() - found.checked_s < _TRUSTED_S:
        return True
    if _reach(found.remote) is not None:
        return False
    try:
        found.session.conf.get("spark.app.name", None)
    except Exception as error:  # noqa: BLE001  # after any failure a new session is opened
        logger.info("session %s on %s: %s", found.session.session_id, without_token(found.remote), error)
        return False
    found.checked_s = time.monotonic()
    return True


def _close(found: _Attached) -> None:
    if found.session.is_stopped:
        return
    # If the server is unreachable, there is nothing to release, and the request would take seconds.
    found.session.release_session_on_close = _reach(found.remote) is None
    found.session.stop()


def _reach(remote: str) -> OSError | None:
    """Try to connect to the server's port. Returns the error; None if the connection succeeds."""
    address = urlsplit(remote)
    try:
        socket.create_connection((address.hostname or "", address.port or USUAL_PORT), _REACH_S).close()
    except OSError as error:
        return error
    return None


def _ask_tasks(session: SparkSession) -> int | None:
    try:
        master = session.conf.get("spark.master", None) or ""
        if "*" not in master and (tasks := local_tasks(master)) is not None:
            return tasks
        # The default number of splits in a plan is the number of cores of a local master or of a cluster's current
        # executors.
        plan = session.sql("EXPLAIN SELECT * FROM range(1000000)").collect()[0][0]
        splits = _SPLITS.search(plan)
    except Exception as error:  # noqa: BLE001  # the caller uses a default
        logger.info("cannot determine how many tasks the server runs at once: %s", error)
        return None
    return int(splits.group(1)) if splits else None


def _release_all() -> None:
    with _lock:
        for key, found in list(_attached.items()):
            del _attached[key]
            _close(found)


atexit.register(_release_all)
# A forked child must not release its parent's sessions.
os.register_at_fork(after_in_child=_attached.clear)
