"""The tutorial, as a reader follows it: its files are saved, its commands run one after another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kpipe_platform.jvm.ports import free_ports
from kpipe_platform.testing.records import consume

from .pages import ROOT, Block, blocks

BLOCKS = [block for block in blocks(ROOT / "docs/tutorial.md") if block.language != "text"]
FILES = [block for block in BLOCKS if block.title is not None]
# Three runs that each start Spark, on a machine that may have much else to do.
DEADLINE_S = 600.0


def defs_of(block: Block) -> dg.Definitions:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block.text, str(block.title), "exec"), namespace)
    return namespace["defs"]


def test_each_version_of_the_definitions_loads() -> None:
    versions = [defs_of(block) for block in FILES if block.title == "shop.py"]
    assert len(versions) == 2
    for defs in versions:
        dg.Definitions.validate_loadable(defs)


class Reader:
    """Somebody who does what the page says, in a shell whose variables stay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = folder / "variables.sh"
        self.variables.touch()
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KPIPE_STATE_DIR": str(folder / "state"),
        }
        self.dagster: subprocess.Popen[bytes] | None = None

    def run(self, commands: str) -> str:
        script = f"set -euo pipefail\n. {self.variables}\n{commands}\nexport -p > {self.variables}\n"
        answer = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, f"{commands}\n{answer.stdout}\n{answer.stderr}"
        return answer.stdout

    def start_dagster(self, command: str) -> None:
        (port,) = free_ports(1)
        script = f". {self.variables}\nexec {command} --port {port}"
        with (self.folder / "dagster.log").open("wb") as log:
            self.dagster = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop_dagster(self) -> None:
        """Press Ctrl-C; what does not end then is killed."""
        if self.dagster is None:
            return
        self.dagster.send_signal(signal.SIGINT)
        try:
            self.dagster.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.dagster.pid, signal.SIGKILL)
            self.dagster.wait()
        self.dagster = None

    def variable(self, name: str) -> str:
        return self.run(f"printf %s ${name}")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        try:
            reader.stop_dagster()
        finally:
            reader.run("kpipe broker stop")


def wait_for_outputs(servers: str, number: int, log: Path) -> dict[str, float]:
    """Order ids and totals of the destination, once it has that many records."""
    deadline = time.monotonic() + DEADLINE_S
    while len(found := consume(servers, "orders.priced")) < number:
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")[-6_000:]
        time.sleep(0.5)
    assert len(found) == number
    return {record.json()["order_id"]: record.json()["total"] for record in found}


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_reader_gets_where_the_page_says(reader: Reader) -> None:
    for block in BLOCKS:
        if block.title is not None:
            (reader.folder / block.title).write_text(block.text, encoding="utf-8")
        elif "pip install" in block.text:
            continue  # the package is what is tested here
        elif block.text.startswith("dagster dev"):
            # Each command writes the file of variables again, so none may run while Dagster's shell reads it.
            servers = reader.variable("KAFKA_BOOTSTRAP_SERVERS")
            reader.start_dagster(block.text.strip())
            totals = wait_for_outputs(servers, 101, reader.folder / "dagster.log")
            assert len(totals) == 101
            assert (totals["o-2"], totals["o-101"]) == (19.0, 3.0)
        elif "broker stop" in block.text:
            reader.stop_dagster()
            reader.run(block.text)
        else:
            reader.run(block.text)
