"""A Spark session for one job in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from kpipe_platform import SparkEngine
from kpipe_platform.errors import EngineUnavailableError
from kpipe_platform.kafka.client.calls import run_in_thread
from kpipe_platform.spark._compat import forget_jvm, jvm_process

_STOP_DEADLINE_S = 15.0
# `kpipe dev` starts the server when it starts Kafka: it is ready when topics are filled, or soon after.
_START_DEADLINE_S = 60.0
_RETRY_INTERVAL_S = 0.2

QUICK_START = "-XX:TieredStopAtLevel=1"
"""JVM option without the optimizing compiler. In a job of a minute, that compiler needs more of two cores than its code
saves. Longer jobs benefit from it."""


def spark_config(folder: Path) -> dict[str, str]:
    """Return settings of a local Spark for a job of a minute or two, with all its files in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    java = f"{QUICK_START} -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder}"
    return {
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


@contextmanager
def spark_running(engine: SparkEngine) -> Iterator[Callable[[], object]]:
    """Start Spark in the background, and stop it at the end; an existing session keeps running.

    If the engine is a Spark Connect server, wait until it responds. `kpipe dev` starts it while topics are filled.

    Yields:
        A function that waits until Spark has started. It raises the error if Spark cannot start.
    """
    if SparkSession.getActiveSession() is not None:
        yield lambda: None
        return
    # In another thread than the main one, pyspark does not replace the handler of SIGINT.
    retrying = Retrying(
        retry=retry_if_exception_type(EngineUnavailableError),
        wait=wait_fixed(_RETRY_INTERVAL_S),
        stop=stop_after_delay(_START_DEADLINE_S if engine.remote else 0.0),
        reraise=True,
    )
    started = run_in_thread(lambda: retrying(lambda: engine.spark_session))
    try:
        yield started.result
    finally:
        _stop(started)


def _stop(started: Future[Any]) -> None:
    """Stop a session and its JVM, and wait until both have ended."""
    # After an interrupt, the connection to the JVM may wait forever for a response that was already consumed.
    stopping = threading.Thread(target=_stop_quietly, args=(started,), daemon=True)
    stopping.start()
    stopping.join(_STOP_DEADLINE_S)
    process = jvm_process()
    if process is None:
        return
    # The JVM exits when this pipe closes. Python would close it only at its own exit.
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_STOP_DEADLINE_S)
    except Exception:  # noqa: BLE001  # subprocess.TimeoutExpired, or the error of another launcher
        process.kill()
    # A later session of this process starts a new JVM.
    forget_jvm()


def _stop_quietly(started: Future[Any]) -> None:
    with suppress(Exception):
        # Spark may be starting still.
        started.result().stop()
