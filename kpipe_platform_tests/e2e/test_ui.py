"""The UI that `make dev` starts, used as a person uses it: one partition materialised by clicking."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from kpipe_platform.demo.reading import committed_records
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS, PARTITIONS
from kpipe_platform.jvm.ports import LOOPBACK, free_port, is_free
from kpipe_platform.kafka.settings import ConnectionSettings

pytestmark = [pytest.mark.browser, pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]

ROOT = Path(__file__).parents[2]

ASSET = "flights_enriched"
PARTITION = 2
# One slice of the asset.
RECORDS = 20_000

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Kafka, 336,776 flights and Dagster; then runs that each start a Spark session.
START_DEADLINE_S = 200.0
RUN_DEADLINE_S = 150.0
STOP_DEADLINE_S = 60.0
GONE_DEADLINE_S = 10.0
PAGE_DEADLINE_S = 45.0

MARK = "KPIPE_TEST_UI"

LAUNCH = """
mutation ($parameters: ExecutionParams!) {
  launchPipelineExecution(executionParams: $parameters) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""
RUNS = """
{ runsOrError { ... on Runs { results { runId status assetSelection { path } tags { key value } } } } }
"""


class Dev:
    """`kpipe dev` as `make dev` starts it, with a port and data of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._log = folder / "dev.log"
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "DAGSTER_HOME" and not name.startswith("KPIPE_")
        }
        command = [Path(sys.executable).with_name("kpipe"), "dev", "--port", str(self.port), "--data-dir"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, folder / "data"],
                cwd=ROOT,
                env={**environment, MARK: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def connection(self) -> ConnectionSettings:
        found = re.search(rf"Kafka +({LOOPBACK}:\d+)", self.log)
        assert found, self.log
        return ConnectionSettings(bootstrap_servers=found[1])

    def until(self, what: Callable[[], bool], deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while not what():
            assert self.process.poll() is None, f"it ended:\n{self.log}"
            assert time.monotonic() < end, f"not within {deadline_s:.0f} s:\n{self.log[-6_000:]}"
            time.sleep(0.3)

    def graphql(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60.0) as response:
            answer = json.load(response)
        assert not answer.get("errors"), answer
        return answer["data"]

    def launch(self, *assets: str) -> None:
        selector = {
            "repositoryLocationName": "kpipe",
            "repositoryName": "__repository__",
            "jobName": "__ASSET_JOB",
            "assetSelection": [{"path": [name]} for name in assets],
        }
        parameters = {"selector": selector, "runConfigData": {}, "mode": "default"}
        launched = self.graphql(LAUNCH, parameters=parameters)["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched

    def runs(self, asset: str) -> list[dict[str, Any]]:
        runs = self.graphql(RUNS)["runsOrError"]["results"]
        return [run for run in runs if {"path": [asset]} in (run["assetSelection"] or [])]

    def until_succeeded(self, asset: str) -> None:
        def succeeded() -> bool:
            states = {run["status"] for run in self.runs(asset)}
            assert not states & {"FAILURE", "CANCELED"}, self.log[-6_000:]
            return states == {"SUCCESS"}

        self.until(succeeded, RUN_DEADLINE_S)

    def processes(self) -> dict[int, str]:
        """All that lives of what this instance started: each has its mark in its environment, or its data named."""
        mark = f"{MARK}={self._folder}".encode()
        data = f"{self._folder}/data".encode()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                if mark in (process / "environ").read_bytes().split(b"\0") or data in command:
                    found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
        return found


class Shots:
    """Numbered pictures of what a person would have seen."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._taken = 0

    def __call__(self, name: str) -> None:
        self._taken += 1
        self._page.screenshot(path=self._folder / f"{self._taken:02}-{name}.png")


@pytest.fixture
def chromium() -> Path:
    path = Path(os.environ.get("CHROMIUM") or "/usr/bin/chromium")
    if not os.access(path, os.X_OK):
        pytest.fail(
            f"There is no Chromium at {path}. Debian: apt-get install chromium. Elsewhere: CHROMIUM=/path/to/chromium"
        )
    return path


@pytest.fixture
def running(chromium: Path, tmp_path: Path) -> Iterator[Dev]:
    instance = Dev(tmp_path)
    try:
        instance.until(lambda: "Dagster UI" in instance.log, START_DEADLINE_S)
        yield instance
    finally:
        # What it started ends with it, however it ends.
        if instance.process.poll() is None:
            instance.process.kill()
            instance.process.wait()


@contextmanager
def browser_page(chromium: Path, folder: Path) -> Iterator[Page]:
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            folder / "browser",
            executable_path=chromium,
            headless=True,
            args=CHROMIUM_ARGUMENTS,
            viewport={"width": 1600, "height": 1400},
        )
        try:
            context.set_default_timeout(PAGE_DEADLINE_S * 1_000)
            page = context.pages[0]
            # Dagster greets the first visitor of an instance.
            page.add_locator_handler(
                page.get_by_text("Join the Dagster community"),
                lambda: page.get_by_role("button", name="Skip").click(),
            )
            yield page
        finally:
            context.close()


def metadata_of(page: Page, name: str) -> Locator:
    """What the table of metadata shows under a name."""
    return page.locator(f"xpath=//tr[td[1][normalize-space()='{name}']]/td[2]")


def materialise_by_clicking(page: Page, shot: Callable[[str], None]) -> None:
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog").filter(has_text=f"Launch runs to materialize {ASSET}")
    dialog.get_by_text("Select a partition").click()
    page.get_by_role("menu").get_by_title(str(PARTITION), exact=True).click()
    shot("partition-chosen")
    # Closes the list, not the dialog.
    page.keyboard.press("Escape")
    expect(page.get_by_placeholder("Filter partitions")).to_be_hidden()
    expect(dialog.get_by_text("1 partition", exact=True)).to_be_visible()
    shot("dialog-ready")
    dialog.get_by_role("button", name="Launch 1 run", exact=True).click()
    expect(dialog).to_be_hidden()
    shot("launched")


def assert_metadata_is_shown(page: Page, *, written: int, dead_letters: int) -> None:
    expect(metadata_of(page, "records_read")).to_have_text(str(RECORDS))
    expect(metadata_of(page, "records_written")).to_have_text(str(written))
    expect(metadata_of(page, "dead_letters")).to_have_text(str(dead_letters))
    expect(metadata_of(page, "dead_letter_reasons").get_by_role("cell")).to_have_text(
        [str(dead_letters), 'field "dep_time" is required but missing']
    )
    slices = metadata_of(page, "slices")
    expect(slices.get_by_role("row")).to_have_count(2)
    cells = slices.get_by_role("row").last.get_by_role("cell").all_inner_texts()
    assert cells[:7] == [str(PARTITION), "0", str(RECORDS), str(RECORDS), str(written), str(dead_letters), "0"]
    expect(metadata_of(page, "steps").get_by_role("row")).to_have_count(6)


def assert_preview_opens(page: Page, shot: Callable[[str], None]) -> None:
    metadata_of(page, "preview").get_by_text("[Show Markdown]").click()
    table = page.get_by_role("dialog").get_by_role("table")
    # Field by field, a column for each of the first five records.
    expect(table.get_by_role("columnheader")).to_have_text(["field", *(f"record {n}" for n in range(1, 6))])
    expect(table.get_by_role("row").filter(has_text="delay_class")).to_have_count(1)
    expect(table.get_by_role("row").filter(has_text="year")).to_contain_text("2013")
    shot("preview")
    page.keyboard.press("Escape")
    expect(table).to_be_hidden()


def counted(connection: ConnectionSettings) -> tuple[int, int, int]:
    """Flights without a departure in the slice, records written and dead letters: read from the topics."""
    seen = never_departed = 0
    for record in committed_records(connection, FLIGHTS):
        if record.partition() == PARTITION:
            seen += 1
            never_departed += "dep_time" not in json.loads(record.value() or b"{}")
        if seen == RECORDS:
            break
    written, dead = (sum(1 for _ in committed_records(connection, topic)) for topic in (ENRICHED, DEAD_LETTERS))
    return never_departed, written, dead


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_partition_is_materialised_by_clicking_and_its_metadata_is_on_the_page(
    chromium: Path, running: Dev, tmp_path: Path
) -> None:
    running.launch("planes", "airlines")
    shots = tmp_path / "screenshots"
    shots.mkdir()
    with browser_page(chromium, tmp_path) as page:
        shot = Shots(page, shots)
        try:
            page.goto(f"{running.url}/asset-groups", wait_until="domcontentloaded")
            for name in ("flights", "planes", "airlines", ASSET, "carrier_delays"):
                expect(page.get_by_text(name, exact=True).first).to_be_visible()
            running.until_succeeded("planes")
            shot("graph")

            page.goto(f"{running.url}/assets/{ASSET}", wait_until="domcontentloaded")
            materialise_by_clicking(page, shot)
            running.until_succeeded(ASSET)
            (run,) = running.runs(ASSET)
            assert {"key": "dagster/partition", "value": str(PARTITION)} in run["tags"]

            never_departed, written, dead_letters = counted(running.connection)
            assert (written, dead_letters) == (RECORDS - never_departed, never_departed)
            assert dead_letters > 0

            page.goto(f"{running.url}/assets/{ASSET}?view=partitions&partition={PARTITION}")
            assert_metadata_is_shown(page, written=written, dead_letters=dead_letters)
            expect(page.get_by_text("Materialized (1)")).to_be_visible()
            expect(page.get_by_text(f"Missing ({PARTITIONS - 1})")).to_be_visible()
            shot("metadata")
            assert_preview_opens(page, shot)
        finally:
            shot("last")

    started = running.processes()
    # So that what is looked for afterwards is known to be found: the broker, and Dagster's services.
    assert any("kafka.Kafka" in command for command in started.values()), started
    assert sum("dagster" in command for command in started.values()) > 2, started
    running.process.send_signal(signal.SIGINT)

    assert running.process.wait(STOP_DEADLINE_S) == 0, running.log[-6_000:]
    assert "Stopped." in running.log
    end = time.monotonic() + GONE_DEADLINE_S
    while left := running.processes():
        assert time.monotonic() < end, left
        time.sleep(0.1)
    assert is_free(running.port)
