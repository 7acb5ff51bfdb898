"""Deployments that share a topic, each a process with a Dagster instance and a sensor of its own.

One sensor beside a member without Dagster, with no run: test_share.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

import kpipe_platform
from kpipe_platform.kafka.ownership import registry
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.kafka.ownership.status import OwnershipState
from kpipe_platform.partitions import register_kafka_partitions
from kpipe_platform.resources.scaling import RebalanceMode
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform_tests.metadata import plain_metadata

from .conftest import Sensing
from .deployment import SESSION_S, keep, sharing_manager

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

DRAIN, STOP = RebalanceMode.DRAIN_AND_YIELD, RebalanceMode.STOP_ACCEPTING_NEW_WORK_AND_YIELD
PARTITIONS = 4
# What a takeover needs beside the session timeout: the coordinator's look, a rebalance, a busy machine. Seconds.
MARGIN_S = 15.0
ROOT = Path(kpipe_platform.__file__).parent.parent


def until(condition: Callable[[], object], deadline_s: float = 60.0) -> float:
    """Wait until the condition holds; returns how long that took, seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < deadline_s, "the condition did not come true"
        time.sleep(0.1)
    return time.monotonic() - began


class Other:
    """A deployment in a process of its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "kpipe_platform_tests.sensors.deployment", json.dumps(settings)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def says(self, command: str) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(command + "\n")
        stdin.flush()
        line = stdout.readline()
        assert line, f"the deployment ended with {self.process.wait()}"
        return json.loads(line)  # type: ignore[no-any-return]

    def asked(self) -> list[str]:
        return self.says("tick")["asked"]  # type: ignore[no-any-return]

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


class Deployments:
    """One deployment in this process, and others beside it, over one topic."""

    def __init__(
        self, servers: str, engine: str, topics: tuple[str, str], instance: dg.DagsterInstance, produce: Produce
    ) -> None:
        self.servers = servers
        self.engine = engine
        self.source, self.target = topics
        self.prefix = f"shared-{uuid.uuid4().hex[:8]}"
        self.instance = instance
        self.produce = produce
        self.others: list[Other] = []
        self._here: Sensing | None = None

    def here(self, mode: RebalanceMode = DRAIN, stage: Callable[..., Any] = keep, **how: Any) -> Sensing:
        manager = sharing_manager(self.servers, self.prefix, mode, **how)
        # Here one run takes all partitions that are due.
        made = Sensing(
            self.source,
            self.target,
            manager,
            self.instance,
            self.produce,
            stage,
            asset_options={"backfill_policy": dg.BackfillPolicy.single_run()},
            options={"partitions_per_run": PARTITIONS},
        )
        register_kafka_partitions(self.instance, self.source, range(PARTITIONS))
        self._here = made
        return made

    def other(self, mode: RebalanceMode = DRAIN, **how: Any) -> Other:
        settings = {
            "servers": self.servers,
            "engine": self.engine,
            "prefix": self.prefix,
            "mode": mode.value,
            "ownership": how,
            "source": self.source,
            "target": self.target,
            "partitions": PARTITIONS,
        }
        made = Other(settings)
        self.others.append(made)
        return made

    @property
    def member(self) -> ConsumerGroupOwnership:
        """The member of this process, as the sensor's ticks find it."""
        assert self._here is not None
        return registry._running[(self.servers, self._here.group)]

    @property
    def state(self) -> OwnershipState:
        return self.member.state()

    def owned(self) -> list[int]:
        return sorted(number for _, number in self.member.owned() or ())

    def send(self, *ids: int) -> None:
        """Each id to each partition, as ``id * 10 + partition``."""
        records = [
            {"key": "k", "value": b'{"id": %d}' % (i * 10 + n), "partition": n} for i in ids for n in range(PARTITIONS)
        ]
        self.produce(self.source, records)

    def close(self) -> None:
        for other in self.others:
            other.end()
        if self._here is not None:
            self.member.close(drain=False)


@pytest.fixture
def deployments(
    kafka_broker: EmbeddedBroker,
    kafka_topic: TopicFactory,
    instance: dg.DagsterInstance,
    produce: Produce,
    spark: SparkSession,
    engine: str,
) -> Iterator[Deployments]:
    """Runs of this process take the session of the test run; those of the others attach to an engine."""
    topics = kafka_topic("orders", partitions=PARTITIONS), kafka_topic("enriched")
    made = Deployments(kafka_broker.bootstrap_servers, engine, topics, instance, produce)
    yield made
    made.close()


def ids(consume: Consume, topic: str) -> list[int]:
    """What the output holds, read committed."""
    return sorted(record.json()["id"] for record in consume(topic))


def expected(*numbers: int) -> list[int]:
    return sorted(i * 10 + n for i in numbers for n in range(PARTITIONS))


def test_each_partition_is_asked_for_by_one_and_taken_over_when_its_owner_is_stopped_or_killed(
    deployments: Deployments, consume: Consume
) -> None:
    here, other = deployments.here(instance_id=None), deployments.other()
    deployments.send(1, 2)
    until(lambda: here.asked() == ["0-3"])
    until(lambda: len(other.asked()) == 2)
    until(lambda: len(deployments.owned()) == 2)
    mine = [str(number) for number in deployments.owned()]
    assert "-".join(here.asked()).split("-") == mine
    assert sorted([*mine, *other.asked()]) == ["0", "1", "2", "3"]

    # Both work on their share, at the same time.
    answers: list[dict[str, Any]] = []
    theirs = threading.Thread(target=lambda: answers.append(other.says("work")))
    theirs.start()
    assert {done for _, done in here.work()} == {True}
    theirs.join()
    assert answers[0]["succeeded"] == [True, True]
    assert ids(consume, deployments.target) == expected(1, 2)

    # One that ends in order is replaced at once.
    deployments.send(3)
    other.leave()
    assert until(lambda: len(deployments.owned()) == PARTITIONS) < SESSION_S
    assert here.work() == [("0-3", True)]

    # One that is killed, within the session timeout.
    other = deployments.other()
    deployments.send(4)
    until(lambda: len(other.asked()) == 2)
    other.process.send_signal(signal.SIGKILL)
    other.process.wait()
    assert until(lambda: len(deployments.owned()) == PARTITIONS) < SESSION_S + MARGIN_S
    assert here.work() == [("0-3", True)]
    assert ids(consume, deployments.target) == expected(1, 2, 3, 4)
    assert here.work() == []


class Gate:
    """A run that is held in its stage, on a thread of its own, until it is let go."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.done: list[bool] = []
        self._thread: threading.Thread | None = None

    def stage(self, orders: Any) -> Any:
        self.reached.set()
        assert self.open.wait(120)
        return orders

    def start(self, sensing: Sensing, request: dg.RunRequest) -> None:
        self._thread = threading.Thread(target=lambda: self.done.append(sensing.start(request)))
        self._thread.start()
        assert self.reached.wait(60)

    def let_go(self) -> bool:
        """Whether the run succeeded."""
        self.close()
        return self.done == [True]

    def close(self) -> None:
        self.open.set()
        if self._thread is not None:
            self._thread.join(90)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def begin_to_share(deployments: Deployments, gate: Gate, mode: RebalanceMode, **how: Any) -> Sensing:
    """One run over every partition is in flight here, held in its stage."""
    here = deployments.here(mode, gate.stage, **how)
    deployments.send(1)
    here.tick()
    until(lambda: len(deployments.owned()) == PARTITIONS)
    [request] = here.tick().run_requests or []
    assert request.tags["kpipe/partitions"] == "0-3"
    gate.start(here, request)
    # Behind what the held run takes.
    deployments.send(2)
    return here


def test_drain_and_yield_keeps_a_partition_until_its_run_is_finished(
    deployments: Deployments, consume: Consume, gate: Gate
) -> None:
    here = begin_to_share(deployments, gate, DRAIN, drain_deadline_s=120, instance_id="blue")
    other = deployments.other(DRAIN, instance_id="green")
    other.asked()
    until(lambda: deployments.state.draining)
    draining = deployments.state.draining
    assert len(draining) == 2
    assert len(deployments.owned()) == 2

    # They are neither asked for here, nor given to the other, for longer than a drain without work takes.
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert [*here.asked(), *other.asked()] == []
        assert deployments.state.draining == draining

    assert gate.let_go()
    until(lambda: len(other.asked()) == 2)
    assert not deployments.state.draining
    answer = other.says("work")
    assert set(answer["succeeded"]) == {True}
    assert {tags["kpipe/instance"] for tags in answer["tags"]} == {"green"}
    assert {done for _, done in here.work()} == {True}
    found = consume(deployments.target)
    assert sorted(record.json()["id"] for record in found) == expected(1, 2)

    # Who wrote each record is in it, in the run's tags and in the materialization.
    wrote = {record.json()["id"]: dict(record.headers) for record in found}
    for _, number in draining:
        first, second = wrote[10 + number], wrote[20 + number]
        assert (first["kpipe.instance"], second["kpipe.instance"]) == (b"blue", b"green")
        assert (first["kpipe.worker"] or b"").endswith(b"/pid-%d" % os.getpid())
        assert (second["kpipe.worker"] or b"").endswith(b"/pid-%d" % other.process.pid)
        [lease] = [tags["kpipe/lease"] for tags in answer["tags"] if tags["kpipe/partitions"] == str(number)]
        assert second["kpipe.lease"] == lease.encode()
        assert lease.startswith(f"{here.group}.owners/")
        last = dg.AssetRecordsFilter(dg.AssetKey("enriched"), asset_partitions=[str(number)])
        [record] = deployments.instance.fetch_materializations(last, limit=1).records
        assert record.asset_materialization is not None
        told = plain_metadata(record.asset_materialization.metadata)
        run = deployments.instance.get_run_by_id(record.run_id)
        assert run is not None
        assert run.tags["kpipe/instance"] == told["instance"] == "blue"
        assert run.tags["kpipe/lease"] == told["lease"] == (first["kpipe.lease"] or b"").decode()


def test_stop_accepting_yields_at_once_and_the_late_run_changes_nothing(
    deployments: Deployments, consume: Consume, gate: Gate
) -> None:
    here = begin_to_share(deployments, gate, STOP)
    other = deployments.other(STOP)
    until(lambda: len(other.asked()) == 2)
    # The run is at work still.
    assert gate.done == []
    assert len(deployments.owned()) == 2
    answer = other.says("work")
    assert set(answer["succeeded"]) == {True}

    # What it read of two partitions was committed by the other meanwhile: it fails there, and does the others.
    assert not gate.let_go()
    for _ in range(2):
        here.after_last_run(60)
        assert {done for _, done in here.work()} <= {True}
    assert other.says("work")["succeeded"] == []
    assert ids(consume, deployments.target) == expected(1, 2)
