"""The process of a Spark Connect server: a driver that starts Spark with the Connect plugin, and waits.

Spark's own main class isolates every session, so each run needs a separate Python daemon, which takes seconds to start
and is never stopped. Sessions of the plugin share one daemon. Their settings, views and jobs are still separate.

Run it with ``python -m kpipe_platform.spark.connect.program FOLDER``. It reads its options from ``server.json`` in the
folder. It writes ``ready.json`` once clients can attach, or ``failed.json`` if it fails for a known reason.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from kpipe_platform.errors import KpipeError
from kpipe_platform.jvm.ports import established
from kpipe_platform.jvm.private_files import write_private
from kpipe_platform.spark._compat import jvm_process
from kpipe_platform.spark.connect.executor_check import check_executors
from kpipe_platform.spark.connect.idle import IdleSweep
from kpipe_platform.spark.connect.server import FAILED, OPTIONS, READY
from kpipe_platform.spark.connect.warm_up import warm_up
from kpipe_platform.spark.engine.session import get_session
from kpipe_platform.spark.engine.settings import EngineSettings, local_tasks

_POLL_S = 0.5
_SWEEP_INTERVAL_S = 5.0
_JVM_DEADLINE_S = 10.0

logger = logging.getLogger("kpipe_platform.spark.connect.program")


def main() -> int:
    """Serve until SIGTERM, or until the JVM ends.

    Returns:
        The exit code: 0 after SIGTERM, 1 if the JVM ended unexpectedly or Spark could not start.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    signal.signal(signal.SIGTERM, _exit)
    folder = Path(sys.argv[1])
    options = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))
    try:
        session = get_session(
            EngineSettings(master=options["master"], app_name=options["app_name"], config=options["settings"])
        )
        if local_tasks(options["master"]) is None:
            check_executors(session, options["executors_deadline_s"])
        _write(folder, READY, {"spark_version": session.version})
        logger.info("Spark %s is ready", session.version)
        if options["warm"]:
            _warm(session)
        process = jvm_process()
        port = int(options["settings"]["spark.connect.grpc.binding.port"])
        sweep = IdleSweep(lambda: established(port), session.catalog.clearCache)
        next_sweep_s = 0.0
        while process.poll() is None:
            if time.monotonic() >= next_sweep_s:
                _sweep(sweep)
                next_sweep_s = time.monotonic() + _SWEEP_INTERVAL_S
            time.sleep(_POLL_S)
        logger.error("the JVM exited unexpectedly with exit code %s", process.returncode)
        return 1
    except KpipeError as error:
        logger.error("%s", error)
        _write(folder, FAILED, {"kind": type(error).__name__, "message": error.message, "fix": error.fix})
        return 1
    finally:
        _end_jvm()


def _sweep(sweep: IdleSweep) -> None:
    try:
        sweep.look()
    except Exception as error:  # noqa: BLE001  # a failed cleanup must not end the server
        logger.warning("could not clean up after disconnected clients: %s", error)


def _exit(_number: int, _frame: FrameType | None) -> None:
    logger.info("stopped by SIGTERM")
    # A second SIGTERM must not interrupt the shutdown.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def _write(folder: Path, name: str, fields: dict[str, Any]) -> None:
    write_private(folder / name, json.dumps(fields))


def _warm(session: SparkSession) -> None:
    began = time.monotonic()
    try:
        warm_up(session)
    except Exception as error:  # noqa: BLE001  # the first slice would report the same error
        logger.warning("could not warm up: %s", error)
    else:
        logger.info("warmed up in %.1f s", time.monotonic() - began)


def _end_jvm() -> None:
    process = jvm_process()
    if process is None:
        return
    # When this pipe closes, Spark's JVM shuts down cleanly and deletes its temporary folders.
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_JVM_DEADLINE_S)
    except Exception:  # noqa: BLE001  # subprocess.TimeoutExpired, or an exception of another launcher's process
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
