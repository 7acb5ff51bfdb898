"""`kpipe dev` ends with a run that never finishes, without a chance to clean up, or because Dagster does not start."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.model import Schema
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry
from kpipe_platform_tests.cli.dev_process import RUN_DEADLINE_S, STOP_DEADLINE_S, Dev, running_dev

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

# A workspace of its own keeps these tests to what `kpipe dev` does, whatever the flights platform holds.
DEFINITIONS = """
import subprocess
import dagster as dg

@dg.asset
def endless():
    subprocess.run(["sleep", "987"])

defs = dg.Definitions(
    assets=[endless],
    jobs=[dg.define_asset_job("endless_job", [endless])],
    executor=dg.in_process_executor,
)
"""


def start_endless_run(dev: Dev) -> None:
    dev.until_ready()
    dev.launch("toy", "endless_job")
    dev.until(lambda: any("sleep 987" in command for command in dev.processes().values()), RUN_DEADLINE_S)


def test_a_run_that_does_not_finish_is_ended_after_the_deadline(tmp_path: Path) -> None:
    # The run has no use for Spark.
    options = ("--no-warm-engine", "--drain-s", "3")
    with running_dev(tmp_path, *options, definitions=DEFINITIONS) as dev:
        start_endless_run(dev)

        dev.ctrl_c()

        assert dev.process.wait(STOP_DEADLINE_S) == 0, dev.log
        dev.check_nothing_is_left()
    assert "Waiting up to 3 s for 1 active run" in dev.log
    assert "Not finished within 3 s. Canceling 1 active run" in dev.log
    assert "Stopped." in dev.log
    # A run that the history still called running would hold a place in the queue of the next start.
    assert set(dev.run_states()) <= {"FAILURE", "CANCELED"}


@pytest.mark.spark
def test_nothing_outlives_it_when_it_is_killed(tmp_path: Path) -> None:
    with running_dev(tmp_path, definitions=DEFINITIONS) as dev:
        start_endless_run(dev)
        # So that what is looked for afterwards is known to be found.
        commands = list(dev.processes().values())
        for each in ("kafka.Kafka", "org.apache.spark", "dagster"):
            assert any(each in command for command in commands), (each, commands)

        dev.process.kill()
        dev.process.wait()

        dev.check_nothing_is_left()


def test_the_registry_is_stopped_and_keeps_its_schemas(tmp_path: Path) -> None:
    options, schema = ("--no-warm-engine", "--registry"), Schema('"int"')
    with running_dev(tmp_path, *options, definitions=DEFINITIONS) as dev:
        dev.until_ready()
        url = re.search(r"Registry +(http://\S+)\n", dev.log)
        assert url is not None, dev.log
        assert f"export SCHEMA_REGISTRY_URL={url[1]}\n" in dev.log
        registered = RegistryClient(RegistrySettings(url[1])).register("orders-value", schema)
        dev.ctrl_c()
        assert dev.process.wait(STOP_DEADLINE_S) == 0, dev.log
        dev.check_nothing_is_left()
    with EmbeddedRegistry(dev.data / "registry") as registry:
        assert RegistryClient(RegistrySettings(registry.url)).latest("orders-value") == registered


def test_says_why_when_dagster_does_not_start(tmp_path: Path) -> None:
    options = ("--no-warm-engine",)
    with running_dev(tmp_path, *options, definitions=DEFINITIONS, workspace="load_from: nonsense\n") as dev:
        assert dev.process.wait(RUN_DEADLINE_S) != 0

        dev.check_nothing_is_left()
    assert "Dagster stopped unexpectedly" in dev.log
