"""Runs in processes of their own, with a Spark of their own, that are killed or terminated: the next run goes on.

What a writer leaves that is killed is tried faster in ``test_failures_e2e`` and ``test_lanes_e2e``, and what a signal
does in ``test_termination_e2e``.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import kpipe_platform
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.processes import descendant_groups, wait_until

from .conftest import BAD, Orders, order
from .killing import hanging_at, kill_at

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def test_killed_after_the_flush_and_before_the_commit(
    orders: Orders, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    orders.send(*(order(n) for n in range(50)), BAD)
    kill_at("hang_before_commit", orders, kafka_broker, tmp_path)
    assert len(orders.outputs(settled=False, isolation="read_uncommitted")) == 50
    assert orders.outputs(settled=False, settle_s=0) == []
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_written"], found["dead_letters"]) == (50, 1)
    assert orders.ids() == list(range(50))
    assert len(orders.letters()) == 1
    assert orders.lag() == 0


def test_terminated_in_the_middle_of_a_write(orders: Orders, kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    orders.send(*(order(n) for n in range(20)), BAD)
    with hanging_at("hang_before_offsets", orders, kafka_broker, tmp_path) as child:
        groups = descendant_groups(child.pid)
        child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        wait_until(lambda: child.poll() is not None, "the end of the run", 60)
        took_s = time.monotonic() - began
        log = (tmp_path / "stderr").read_text()
        assert took_s < 20, log[-3000:]
        # Spark's own processes end with it.
        wait_until(lambda: not _alive(groups), "the end of its processes", 30)
    # Aborted by the run itself: nobody waits for the transaction's timeout.
    assert orders.outputs() == []
    assert orders.committed() is None
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_written"], found["dead_letters"]) == (20, 1)


def _alive(groups: set[int]) -> bool:
    return any(
        int(fields[2]) in groups and fields[0] != "Z"
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        for fields in [_stat(entry)]
        if fields
    )


def _stat(entry: Path) -> list[str]:
    try:
        return (entry / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


@contextmanager
def following(orders: Orders, broker: EmbeddedBroker, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that follows partition 0. On exit, it is killed if it is still alive."""
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
        return (folder / "stderr").read_text().count("slice committed")

    for number in range(2):
        orders.send(order(number))
        wait_until(lambda: child.poll() is not None or slices_done() > number, "the slice", 240)  # noqa: B023
        assert child.poll() is None, (folder / "stderr").read_text()[-3000:]
    assert orders.committed() == 2


def test_a_run_that_is_killed_between_slices_loses_nothing(
    orders: Orders, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with following(orders, kafka_broker, tmp_path) as child:
        take_two(orders, child, tmp_path)
    assert child.returncode == -signal.SIGKILL
    orders.send(order(2))
    found = orders.metadata(orders.run(orders.asset()))
    assert [(r["start"], r["end"]) for r in found["ranges"]] == [(2, 3)]
    assert orders.ids() == [0, 1, 2]
