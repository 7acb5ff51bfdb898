"""A run that is terminated in the middle of a write: over within seconds, and nothing of it is visible."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform_tests.processes import descendant_groups, wait_until

from .conftest import BAD, Orders, order
from .killing import hanging_at

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_run(
    orders: Orders, kafka_broker: EmbeddedBroker, tmp_path: Path, signal_: signal.Signals
) -> None:
    orders.send(*(order(n) for n in range(20)), BAD)
    with hanging_at("hang_before_offsets", orders, kafka_broker, tmp_path) as child:
        assert len(orders.outputs(settled=False, isolation="read_uncommitted")) == 20
        groups = descendant_groups(child.pid)
        began = time.monotonic()
        child.send_signal(signal_)
        wait_until(lambda: child.poll() is not None, "the end of the run", 60)
        took = time.monotonic() - began
        log = (tmp_path / "stderr").read_text()
        assert took < 15, f"{took:.1f} s\n{log[-3000:]}"
        # Spark's own processes end with it.
        wait_until(lambda: not _alive(groups), "the end of its processes", 15)
    failed = [json.loads(line) for line in log.splitlines() if line.startswith('{"event":"failed"')]
    assert [(e["partition"], e["start"], e["end"], e["reason"]) for e in failed] == [
        (0, 0, 21, "the run was terminated")
    ]
    # Aborted by the run itself: nobody waits for the transaction's timeout.
    assert orders.outputs() == []
    assert orders.committed() is None
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_written"], found["dead_letters"]) == (20, 1)
    assert orders.ids() == list(range(20))


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
