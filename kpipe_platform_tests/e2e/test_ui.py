"""The UI that `make dev` starts, used as a person uses it: one partition materialized by clicking."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from examples.flights.reading import committed_records
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS, PARTITIONS
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform_tests.cli.dev_process import RUN_DEADLINE_S, STOP_DEADLINE_S, Dev, running_dev

pytestmark = [pytest.mark.browser, pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ASSET = "flights_enriched"
PARTITION = 2
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PAGE_DEADLINE_S = 90.0

RUNS = """
{ runsOrError { ... on Runs { results { runId status assetSelection { path } tags { key value } } } } }
"""
MATERIALIZED = """
query ($keys: [AssetKeyInput!]) {
  assetNodes(assetKeys: $keys) { assetKey { path } assetMaterializations(limit: 2) { runId } }
}
"""


def runs_of(dev: Dev, asset: str) -> list[dict[str, Any]]:
    runs = dev.graphql(RUNS)["runsOrError"]["results"]
    return [run for run in runs if {"path": [asset]} in (run["assetSelection"] or [])]


def succeeded(dev: Dev, asset: str) -> bool:
    states = {run["status"] for run in runs_of(dev, asset)}
    assert not states & {"FAILURE", "CANCELED"}, dev.log[-6_000:]
    return states == {"SUCCESS"}


def materializations(dev: Dev, *assets: str) -> dict[str, int]:
    nodes = dev.graphql(MATERIALIZED, keys=[{"path": [each]} for each in assets])["assetNodes"]
    return {node["assetKey"]["path"][0]: len(node["assetMaterializations"]) for node in nodes}


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
            # An expectation has a default of its own, 5 s, which the page of a busy machine may not meet.
            expect.set_options(timeout=PAGE_DEADLINE_S * 1_000)
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


def materialize_by_clicking(page: Page, shot: Callable[[str], None]) -> None:
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
    read = str(written + dead_letters)
    expect(metadata_of(page, "kpipe/records_read")).to_have_text(read)
    expect(metadata_of(page, "kpipe/records_written")).to_have_text(str(written))
    expect(metadata_of(page, "kpipe/dead_letters")).to_have_text(str(dead_letters))
    expect(metadata_of(page, "kpipe/dead_letter_reasons").get_by_role("cell")).to_have_text(
        [f"{dead_letters:,}", 'field "dep_time" is required but missing']
    )
    slices = metadata_of(page, "kpipe/slices")
    expect(slices.get_by_role("row")).to_have_count(2)
    cells = slices.get_by_role("row").last.get_by_role("cell").all_inner_texts()
    # The marker of the transaction that filled the partition takes the last offset.
    end = str(int(read) + 1)
    assert cells[:7] == [str(PARTITION), "0", end, read, str(written), str(dead_letters), "0"]
    expect(metadata_of(page, "kpipe/steps").get_by_role("row")).to_have_count(6)


def assert_preview_opens(page: Page, shot: Callable[[str], None]) -> None:
    metadata_of(page, "kpipe/preview").get_by_text("[Show Markdown]").click()
    table = page.get_by_role("dialog").get_by_role("table")
    # Field by field, a column for each of the first five records.
    expect(table.get_by_role("columnheader")).to_have_text(["field", *(f"record {n}" for n in range(1, 6))])
    expect(table.get_by_role("row").filter(has_text="delay_class")).to_have_count(1)
    expect(table.get_by_role("row").filter(has_text="year")).to_contain_text("2013")
    shot("preview")
    page.keyboard.press("Escape")
    expect(table).to_be_hidden()


def counted(connection: ConnectionSettings) -> tuple[int, int, int, int]:
    """Flights of the partition, those without a departure, records written and dead letters: read from the topics.

    A slice may have more records than the partition has, so that one run takes all of them.
    """
    flights = [record for record in committed_records(connection, FLIGHTS) if record.partition() == PARTITION]
    never_departed = sum("dep_time" not in json.loads(record.value() or b"{}") for record in flights)
    written, dead = (sum(1 for _ in committed_records(connection, topic)) for topic in (ENRICHED, DEAD_LETTERS))
    return len(flights), never_departed, written, dead


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_partition_is_materialized_by_clicking_and_its_metadata_is_on_the_page(chromium: Path, tmp_path: Path) -> None:
    with running_dev(tmp_path, "--seed", f"{sys.executable} -m examples.flights seed") as dev:
        dev.until_ready()
        # What the first click on a partition needs is there already.
        assert materializations(dev, "planes", "airlines", ASSET) == {"planes": 1, "airlines": 1, ASSET: 0}
        click_through(dev, chromium, tmp_path)

        # So that what is looked for afterwards is known to be found: the broker, Spark, and Dagster's services.
        started = dev.processes()
        for each in ("kafka.Kafka", "org.apache.spark"):
            assert any(each in command for command in started.values()), started
        assert sum("dagster" in command for command in started.values()) > 2, started
        # To it alone, as `kill` sends it.
        dev.process.send_signal(signal.SIGINT)

        assert dev.process.wait(STOP_DEADLINE_S) == 0, dev.log[-6_000:]
        assert "Stopped." in dev.log
        dev.check_nothing_is_left()


def click_through(dev: Dev, chromium: Path, folder: Path) -> None:
    shots = folder / "screenshots"
    shots.mkdir()
    with browser_page(chromium, folder) as page:
        shot = Shots(page, shots)
        try:
            page.goto(f"{dev.url}/asset-groups", wait_until="domcontentloaded")
            for name in ("flights", "planes", "airlines", ASSET, "carrier_delays"):
                expect(page.get_by_text(name, exact=True).first).to_be_visible()
            shot("graph")

            page.goto(f"{dev.url}/assets/{ASSET}", wait_until="domcontentloaded")
            materialize_by_clicking(page, shot)
            dev.until(lambda: succeeded(dev, ASSET), RUN_DEADLINE_S)
            (run,) = runs_of(dev, ASSET)
            assert {"key": "dagster/partition", "value": str(PARTITION)} in run["tags"]

            flights, never_departed, written, dead_letters = counted(ConnectionSettings(bootstrap_servers=dev.brokers))
            assert (written, dead_letters) == (flights - never_departed, never_departed)
            assert dead_letters > 0

            page.goto(f"{dev.url}/assets/{ASSET}?view=partitions&partition={PARTITION}")
            assert_metadata_is_shown(page, written=written, dead_letters=dead_letters)
            expect(page.get_by_text("Materialized (1)")).to_be_visible()
            expect(page.get_by_text(f"Missing ({PARTITIONS - 1})")).to_be_visible()
            shot("metadata")
            assert_preview_opens(page, shot)
        finally:
            shot("last")
