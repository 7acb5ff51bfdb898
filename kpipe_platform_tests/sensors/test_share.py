"""A sensor and a deployment without Dagster share a topic: what the sensor asks for as partitions come and go.

The runs have no process: the test ends each and moves the group's offset, as a run would. Deployments in processes of
their own, whose runs do the work: test_sharing.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import dagster as dg
import pytest

from kpipe_platform import KafkaIOManager
from kpipe_platform.kafka.ownership import registry
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.resources.scaling import RebalanceMode

from .conftest import ASSET, Sensing
from .deployment import SESSION_S, sharing_manager

pytestmark = pytest.mark.broker

PARTITIONS = 4


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)


class Shared:
    """A sensor of this process, its member, and another member of the same group."""

    def __init__(self, sensing: Sensing) -> None:
        self.sensing = sensing
        servers = sensing.manager.source.connection.settings.bootstrap_servers
        until(lambda: sensing.tick() and registry._running[(servers, sensing.group)].owned())
        self.member = registry._running[(servers, sensing.group)]
        self.rival = ConsumerGroupOwnership(
            sensing.manager.source.connection.settings,
            sensing.group,
            [sensing.source],
            session_timeout_s=SESSION_S,
            instance_id="green",
        )

    @property
    def mine(self) -> list[str]:
        return sorted(str(number) for _, number in self.member.owned() or ())

    @property
    def theirs(self) -> list[str]:
        return sorted(str(number) for _, number in self.rival.owned() or ())

    def begin(self, request: dg.RunRequest) -> str:
        """What the daemon does with a request; the run is then at work until the test ends it."""
        tags = {
            **request.tags,
            "dagster/run_key": str(request.run_key),
            "dagster/partition": str(request.partition_key),
        }
        return self.sensing.queue(dg.DagsterRunStatus.STARTED, tags=tags, asset_selection=frozenset([ASSET]))

    def finish(self, run_id: str, partition: str) -> None:
        self.sensing.set_offset(1, int(partition))
        self.sensing.end(run_id, dg.DagsterEventType.PIPELINE_SUCCESS)

    def close(self) -> None:
        self.rival.close(drain=False)
        self.member.close(drain=False)


@pytest.fixture
def make_shared(make_sensing: Callable[..., Sensing], manager: KafkaIOManager) -> Iterator[Callable[..., Shared]]:
    made: list[Shared] = []

    def make(mode: RebalanceMode) -> Shared:
        source = manager.source
        servers = source.connection.settings.bootstrap_servers
        how = sharing_manager(servers, source.group_prefix, mode, instance_id="blue", drain_deadline_s=120)
        made.append(Shared(make_sensing(PARTITIONS, manager=how)))
        until(lambda: len(made[0].mine) == PARTITIONS)
        return made[0]

    yield make
    for each in made:
        each.close()


def test_a_partition_is_given_away_once_its_run_is_finished_and_comes_back_when_the_other_leaves(
    make_shared: Callable[..., Shared],
) -> None:
    shared = make_shared(RebalanceMode.DRAIN_AND_YIELD)
    sensing = shared.sensing
    for number in range(PARTITIONS):
        sensing.send(1, partition=number)
    requests = sensing.tick().run_requests or []
    assert [request.tags["kpipe/instance"] for request in requests] == ["blue"] * PARTITIONS
    assert {request.tags["kpipe/lease"] for request in requests} == {shared.member.lease}
    runs = {str(request.partition_key): shared.begin(request) for request in requests}
    assert sorted(runs) == ["0", "1", "2", "3"]

    # The other one comes: two partitions wait for their runs, and nobody has them.
    shared.rival.start()
    until(lambda: shared.member.state().draining)
    draining = sorted(str(number) for _, number in shared.member.state().draining)
    kept = shared.mine
    assert (len(draining), len(kept)) == (2, 2)
    for number in kept:
        shared.finish(runs[number], number)
        sensing.send(2, partition=int(number))
    requests = sensing.tick().run_requests or []
    assert sorted(str(request.partition_key) for request in requests) == kept
    later = {str(request.partition_key): shared.begin(request) for request in requests}
    assert shared.theirs == []

    # Their runs end: they belong to the other one, and the sensor leaves them alone.
    for number in draining:
        shared.finish(runs[number], number)
    until(lambda: shared.theirs == draining)
    assert shared.mine == kept
    for number in draining:
        sensing.send(2, partition=int(number))
    for number, run in later.items():
        sensing.set_offset(2, int(number))
        sensing.end(run, dg.DagsterEventType.PIPELINE_SUCCESS)
    assert sensing.asked() == []

    # The other one is gone, which its name would be kept for until the session is over: what it left is asked for.
    shared.rival.close()
    until(lambda: len(shared.mine) == PARTITIONS)
    assert sorted(sensing.asked()) == draining


def test_the_other_mode_gives_partitions_away_while_their_runs_are_at_work(
    make_shared: Callable[..., Shared],
) -> None:
    shared = make_shared(RebalanceMode.STOP_ACCEPTING_NEW_WORK_AND_YIELD)
    sensing = shared.sensing
    for number in range(PARTITIONS):
        sensing.send(1, partition=number)
    runs = [shared.begin(request) for request in sensing.tick().run_requests or []]
    assert len(runs) == PARTITIONS
    shared.rival.start()
    until(lambda: len(shared.theirs) == 2)
    assert sorted([*shared.mine, *shared.theirs]) == ["0", "1", "2", "3"]
    for run in runs:
        sensing.end(run)
    sensing.now_s += 10_000
    assert sorted(sensing.asked()) == shared.mine
