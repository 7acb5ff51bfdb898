"""A Spark Connect server that dies, its successor, and a client that is terminated: on servers of their own.

`kpipe_platform_tests/spark/test_connect_death.py` runs this in a process of its own, see ``connect_cases``.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpipe_platform import (
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    SparkEngine,
)
from kpipe_platform.errors import EngineUnavailableError
from kpipe_platform.jvm.ports import free_ports
from kpipe_platform.spark.connect.server import ConnectServer
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.processes import wait_until

from .conftest import BAD, Orders, order
from .connect_cases import QUICK, on
from .killing import FAULTS, hanging_at

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS = 45_000
"""More than one task reads them, so the rows that they become are cached for the writer."""


@pytest.fixture(scope="session")
def kafka_broker() -> EmbeddedBroker:
    """The broker of the tests that run these: of it only the address is needed."""
    return cast("EmbeddedBroker", SimpleNamespace(bootstrap_servers=os.environ["KPIPE_TEST_BROKER"]))


@pytest.fixture
def kafka_io_manager(kafka_broker: EmbeddedBroker) -> KafkaIOManager:
    """Without a server: the case starts its own."""
    connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
    return KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix=f"test-{uuid.uuid4().hex[:12]}"),
        destination=KafkaDestination(connection=connection),
        dead_letter=KafkaDeadLetterDestination(connection=connection, create_topic=True),
        spark=SparkEngine(),
    )


@pytest.mark.timeout(560)
def test_a_terminated_run_and_a_server_that_dies(
    orders: Orders, kafka_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one test, because each needs a server whose workers hang in the middle of a transaction."""
    port, ui = free_ports(2)
    reached = tmp_path / "reached"
    with monkeypatch.context() as patch:
        patch.setenv("KPIPE_FAULT", "hang_before_offsets")
        patch.setenv("KPIPE_FAULT_FILE", str(reached))
        patch.setenv("PYTHONPATH", FAULTS)
        shown = {"spark.ui.enabled": "true", "spark.ui.port": str(ui)}
        stack = ExitStack()
        settings = {**QUICK, **shown}
        server = stack.enter_context(ConnectServer(tmp_path / "spark", master="local[2]", port=port, settings=settings))
    with stack:
        monkeypatch.setenv("KPIPE_SPARK_REMOTE", server.remote)
        orders.send(*(order(n) for n in range(RECORDS)), BAD)
        with hanging_at("hang_before_offsets", orders, kafka_broker, tmp_path) as child:
            assert (cached_rows(ui) > 0, running_jobs(ui)) == (True, 1)
            began = time.monotonic()
            child.send_signal(signal.SIGTERM)
            wait_until(lambda: child.poll() is not None, "the end of the run", 60)
            took_s = time.monotonic() - began
        log = (tmp_path / "stderr").read_text()
        assert took_s < 20, f"{took_s:.1f} s\n{log[-3000:]}"
        # Aborted by the run itself, and nothing of it is left on the server, which serves on.
        assert orders.outputs() == []
        assert orders.committed() is None
        wait_until(lambda: running_jobs(ui) == 0, "the end of its jobs", 30)
        wait_until(lambda: cached_rows(ui) == 0, "the release of its rows", 30)
        assert server.is_running()
        reached.unlink()

        manager = on(server.remote, orders)
        lost = pytest.raises(EngineUnavailableError, match="Spark Connect server was lost")
        with killed_when(reached.exists, server), lost as caught:
            orders.run(orders.asset(), manager=manager)
        assert "kpipe spark start" in str(caught.value)
        assert orders.committed() is None

    # The same process goes on with the server's successor; what the last one left open is aborted.
    with ConnectServer(tmp_path / "spark", master="local[2]", port=port, settings=QUICK, warm=False):
        found = orders.metadata(orders.run(orders.asset(), manager=manager))
    assert (found["records_written"], found["dead_letters"]) == (RECORDS, 1)
    assert orders.ids() == list(range(RECORDS))


def cached_rows(ui: int) -> int:
    """Number of frames that the server holds cached rows of."""
    return len(asked(ui, "storage/rdd"))


def running_jobs(ui: int) -> int:
    """Number of the server's Spark jobs at work."""
    return len(asked(ui, "jobs?status=running"))


def asked(ui: int, what: str) -> list[Any]:
    """What Spark's own interface says of its only application."""
    api = f"http://127.0.0.1:{ui}/api/v1/applications"
    with urllib.request.urlopen(api, timeout=60) as answer:
        (application,) = json.load(answer)
    with urllib.request.urlopen(f"{api}/{application['id']}/{what}", timeout=60) as answer:
        found: list[Any] = json.load(answer)
        return found


@contextmanager
def killed_when(condition: Callable[[], bool], server: ConnectServer) -> Iterator[None]:
    """Kill the server's whole process group, as the kernel does when memory is short, once a condition holds."""

    def kill() -> None:
        wait_until(condition, "the place to kill at", 120)
        pid = server.pid
        assert pid is not None
        os.killpg(os.getpgid(pid), signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        yield
    finally:
        killing.join(130)
