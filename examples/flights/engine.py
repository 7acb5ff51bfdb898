"""Spark for the time of one job of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from examples.flights.interrupts import handlers_kept
from examples.flights.progress import Steps
from kpipe_platform import SparkEngine

_STOP_DEADLINE_S = 15.0


def spark_config(folder: Path) -> dict[str, str]:
    """Settings of a local Spark for a job of a minute or two, with all its files in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # The second compiler would take more time from two cores than its code wins back within such a job: it doubles the
    # time of the first slices. A job that works for longer is better off with it.
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder}"
    return {
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


@contextmanager
def spark_running(steps: Steps, engine: SparkEngine) -> Iterator[None]:
    """Start Spark, and stop it in the end; a session that was there before stays."""
    ours = SparkSession.getActiveSession() is None
    with steps.step("Starting Spark"), handlers_kept():
        session = engine.spark_session
    try:
        yield
    finally:
        if ours:
            stop_spark(session)


def stop_spark(session: Any) -> None:
    """Stop a session and its JVM, and wait until they are gone."""
    gateway = getattr(SparkContext, "_gateway", None)
    # After an interrupt the connection to the JVM may wait for an answer that was given to nobody.
    stopping = threading.Thread(target=_stop_quietly, args=(session,), daemon=True)
    stopping.start()
    stopping.join(_STOP_DEADLINE_S)
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    # Spark ends the JVM when this pipe closes, which Python would only do at its own end.
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_STOP_DEADLINE_S)
    except Exception:  # noqa: BLE001  # subprocess.TimeoutExpired, or whatever another launcher's process raises
        process.kill()
    # A later session of this process starts a JVM of its own.
    SparkContext._gateway = SparkContext._jvm = None


def _stop_quietly(session: Any) -> None:
    with suppress(Exception):
        session.stop()
