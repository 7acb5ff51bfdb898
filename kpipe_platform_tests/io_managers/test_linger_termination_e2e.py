"""A run that follows the stream and is ended while it waits: what it committed stands, and the next run goes on."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import kpipe_platform
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform_tests.processes import descendant_groups, wait_until

from .conftest import Orders, order

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@contextmanager
def following(orders: Orders, broker: EmbeddedBroker, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that follows partition 0; whatever is left of it in the end is killed."""
    root = Path(kpipe_platform.__file__).parent.parent
    arguments = [broker.bootstrap_servers, orders.source, orders.target, orders.manager.source.group_prefix]
    with (folder / "stderr").open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "kpipe_platform_tests.io_managers.linger_orders", *arguments, str(folder)],
            cwd=root,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        yield child
    finally:
        for group in {child.pid, *descendant_groups(child.pid)}:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        child.wait(30)


def take_two(orders: Orders, child: subprocess.Popen[bytes], folder: Path) -> None:
    """Two slices, the second one out of the wait."""

    def slices_done() -> int:
        return (folder / "stderr").read_text().count("slice done")

    for number in range(2):
        orders.send(order(number))
        wait_until(lambda: child.poll() is not None or slices_done() > number, "the slice", 240)  # noqa: B023
        assert child.poll() is None, (folder / "stderr").read_text()[-3000:]
    assert orders.committed() == 2


@pytest.mark.timeout(400)
def test_a_run_that_waits_ends_at_once_and_dagster_knows_what_it_did(
    orders: Orders, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with (
        following(orders, kafka_broker, tmp_path) as child,
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
    ):
        take_two(orders, child, tmp_path)
        (run,) = instance.get_runs()
        # What a run launcher does, for the UI's button.
        instance.report_run_canceling(run)
        child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        wait_until(lambda: instance.get_runs()[0].is_finished, "the end of the run", 60)
        took = time.monotonic() - began
        log = (tmp_path / "stderr").read_text()
        assert took < 2, f"{took:.1f} s\n{log[-3000:]}"
        assert instance.get_runs()[0].status is dg.DagsterRunStatus.CANCELED, log[-3000:]
        held = instance.fetch_materializations(dg.AssetKey("enriched"), limit=10).records
    logger.info("ended %.2f s after SIGTERM", took)
    (metadata,) = [m.metadata for record in held if (m := record.asset_materialization) is not None]
    assert metadata["records_read"].value == 2
    ranges: Any = metadata["kpipe/ranges"].value
    assert [(r["start"], r["end"]) for r in ranges] == [(0, 2)]
    told = [json.loads(line[line.index("{") :]) for line in log.splitlines() if '{"event":' in line]
    # It has committed all that it took, so it did not fail there.
    assert [(e["event"], e["start"], e["end"]) for e in told] == [("started", 0, 1), ("completed", 0, 2)]
    assert orders.committed() == 2
    orders.send(order(2))
    assert orders.metadata(orders.run(orders.asset()))["records_read"] == 1
    assert orders.ids() == [0, 1, 2]


@pytest.mark.timeout(400)
def test_a_run_that_is_killed_between_slices_loses_nothing(
    orders: Orders, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with following(orders, kafka_broker, tmp_path) as child:
        take_two(orders, child, tmp_path)
    assert child.returncode == -signal.SIGKILL
    orders.send(order(2))
    found = orders.metadata(orders.run(orders.asset()))
    assert [(r["start"], r["end"]) for r in found["kpipe/ranges"]] == [(2, 3)]
    assert orders.ids() == [0, 1, 2]
