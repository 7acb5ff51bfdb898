"""A broker that goes away in the middle of a slice and comes back."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import DataFrame

from kpipe_platform import FaultAction, FaultPolicies, FaultPolicy, RecordRetryPolicy
from kpipe_platform.errors import BrokerUnavailableError, OffsetConflictError, TransientError
from kpipe_platform.jvm.ports import is_free
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.records import consume, produce
from kpipe_platform_tests.processes import wait_until

from .conftest import CACHED, Orders, manager_at, order
from .killing import INTERRUPTED, terminated

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def broker_of_these(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(data_dir=tmp_path_factory.mktemp("broker") / "data", keep_data=True) as broker:
        yield broker


@pytest.fixture
def own_broker(broker_of_these: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    """A broker that a test may stop; it runs again when the test is over."""
    yield broker_of_these
    if is_free(int(broker_of_these.bootstrap_servers.rsplit(":", 1)[1])):
        broker_of_these.start_broker(0)


def stops(broker: EmbeddedBroker, when: Callable[[], bool] = lambda: True) -> Callable[[DataFrame], DataFrame]:
    """A stage that reads its rows, and then stops the broker."""

    def stage(orders: DataFrame) -> DataFrame:
        if not when():
            return orders
        rows = orders.localCheckpoint()
        broker.stop_broker(0)
        return rows

    return stage


def test_stopped_in_the_middle_of_a_write(orders: Orders, own_broker: EmbeddedBroker) -> None:
    servers = own_broker.bootstrap_servers
    manager = manager_at(servers, orders)
    produce(servers, orders.source, [order(n) for n in range(CACHED)])
    with pytest.raises(TransientError) as caught:
        orders.run(orders.asset(stops(own_broker)), manager=manager)
    assert not isinstance(caught.value, OffsetConflictError)
    own_broker.start_broker(0)
    assert consume(servers, orders.target) == []
    found = orders.metadata(orders.run(orders.asset(), manager=manager))
    assert found["records_written"] == CACHED
    ids = [r.json()["id"] for r in consume(servers, orders.target)]
    assert ids == list(range(CACHED))


def test_stopped_in_the_middle_of_a_small_slice(orders: Orders, own_broker: EmbeddedBroker) -> None:
    """It is read again to be written, and by its default Spark's source would wait for minutes."""
    manager = manager_at(own_broker.bootstrap_servers, orders)
    produce(own_broker.bootstrap_servers, orders.source, [order(n) for n in range(10)])
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match="Kafka source"):
        orders.run(orders.asset(stops(own_broker)), manager=manager)
    assert time.monotonic() - began < 60


def test_a_run_that_is_terminated_while_the_brokers_are_away_ends_in_time(
    orders: Orders, own_broker: EmbeddedBroker
) -> None:
    servers = own_broker.bootstrap_servers
    manager = manager_at(servers, orders)
    produce(servers, orders.source, [order(0)])

    def away() -> None:
        wait_until(lambda: len(consume(servers, orders.target)) == 1, "the first slice", 120)
        own_broker.stop_broker(0)
        # By now the run waits for an answer.
        time.sleep(1)

    with terminated(away, signal.SIGTERM) as sent, pytest.raises(INTERRUPTED):
        orders.run(orders.asset(max_slices=None, linger_s=600), manager=manager)
    assert time.monotonic() - sent[0] < 15
    own_broker.start_broker(0)
    produce(servers, orders.source, [order(1)])
    assert orders.metadata(orders.run(orders.asset(), manager=manager))["records_read"] == 1


@contextmanager
def when_logged(name: str, text: str, happens: Callable[[], Any]) -> Iterator[None]:
    """Let something happen, once, in the thread that logs a message with that text."""

    class Once(logging.Handler):
        done = False

        def emit(self, record: logging.LogRecord) -> None:
            if not self.done and text in record.getMessage():
                self.done = True
                happens()

    handler, logger = Once(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def test_a_write_that_is_not_acknowledged_is_made_again(orders: Orders, own_broker: EmbeddedBroker) -> None:
    servers = own_broker.bootstrap_servers
    manager = manager_at(servers, orders)
    produce(servers, orders.source, [order(n) for n in range(CACHED)])
    calls: list[int] = []

    def first() -> bool:
        calls.append(1)
        return len(calls) == 1

    # It takes a while until the group's coordinator answers again.
    retry = RecordRetryPolicy(max_attempts=20, delay_s=1, backoff="fixed")
    policies = FaultPolicies(
        FaultAction.DEAD_LETTER, destination=FaultPolicy(retry=retry), source=FaultPolicy(retry=retry)
    )
    runner = "kpipe_platform.slices.run.take"
    with when_logged(runner, "attempt 1 failed; retrying in", lambda: own_broker.start_broker(0)):
        asset = orders.asset(stops(own_broker, first), on_fault=policies)
        found = orders.metadata(orders.run(asset, manager=manager))
    assert (len(calls), found["records_written"]) == (2, CACHED)
    assert [r.json()["id"] for r in consume(servers, orders.target)] == list(range(CACHED))
