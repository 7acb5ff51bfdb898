"""A Spark session for one job in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from examples.flights.interrupts import handlers_kept
from examples.flights.progress import Steps
from kpipe_platform import SparkEngine
from kpipe_platform.spark._compat import forget_jvm, jvm_process

_STOP_DEADLINE_S = 15.0


def spark_config(folder: Path) -> dict[str, str]:
    """Return settings of a local Spark for a job of a minute or two, with all its files in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # In such a short job, the optimizing compiler costs more time on two cores than its code saves: it doubles the time
    # of the first slices. Longer jobs benefit from it.
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder}"
    return {
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


@contextmanager
def spark_running(steps: Steps, engine: SparkEngine) -> Iterator[None]:
    """Start Spark, and stop it at the end; an existing session keeps running."""
    ours = SparkSession.getActiveSession() is None
    with steps.step("Starting Spark"), handlers_kept():
        session = engine.spark_session
    try:
        yield
    finally:
        if ours:
            stop_spark(session)


def stop_spark(session: Any) -> None:
    """Stop a session and its JVM, and wait until both have ended."""
    process = jvm_process()
    # After an interrupt, the connection to the JVM may wait forever for a response that was already consumed.
    stopping = threading.Thread(target=_stop_quietly, args=(session,), daemon=True)
    stopping.start()
    stopping.join(_STOP_DEADLINE_S)
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


def _stop_quietly(session: Any) -> None:
    with suppress(Exception):
        session.stop()
