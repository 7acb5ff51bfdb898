"""What a sensor tells its member while that drains, and when it leaves: on a real Dagster instance."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.dagster_run import DagsterRunStatus

from kpipe_platform import KafkaIOManager, KafkaSource, PartitionOwnership, RebalanceMode
from kpipe_platform.kafka.model.offsets import parse_start
from kpipe_platform.kafka.ownership import registry
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.partitions.owners import INSTANCE, LEASE, WORKER, distribution_of
from kpipe_platform.sensors.ownership import PartitionShare
from kpipe_platform.sensors.tick.candidates import Target
from kpipe_platform.slices.plan.ranges import PlanPolicy
from kpipe_platform.slices.write.spec import provenance_headers

from .conftest import ASSET, Sensing
from .deployment import keep, sharing_manager

DRAIN = RebalanceMode.DRAIN_AND_YIELD
TOPICS = ("orders", "customers")
PLACES = frozenset(("orders", number) for number in range(4))
TARGET = Target(
    ASSET, "shop.enriched", PlanPolicy("shop.enriched", "read_committed", parse_start("earliest"), "error"), TOPICS
)


class Member:
    """Says what it is told to own."""

    def __init__(self) -> None:
        self.given: frozenset[tuple[str, int]] | None = frozenset()
        self.instance, self.worker, self.lease = "blue", "host-1/pid-7", None

    def start(self) -> None:
        """Nothing to join."""

    def owned(self) -> frozenset[tuple[str, int]] | None:
        return self.given


class Sharing:
    """A share over an asset, its member, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance, partitioned: bool) -> None:
        self.now_s = 100.0
        self.instance = instance
        self.member = Member()
        definition = dg.StaticPartitionsDefinition(["0", "1", "2", "3"]) if partitioned else None

        self.seen_in_run: list[list[int]] = []

        @dg.asset(name="enriched", partitions_def=definition, backfill_policy=dg.BackfillPolicy.single_run())
        def enriched() -> None:
            self.seen_in_run.append(self.busy())

        self.asset = enriched
        self.share = PartitionShare(enriched, 5.0, clock=lambda: self.now_s)
        monkeypatch.setattr(PartitionOwnership, "member", lambda *_, **__: self.member)

    def join(self, **options: Any) -> None:
        source = sharing_manager("localhost:1", "shop", DRAIN, **options).source
        with dg.build_sensor_context(instance=self.instance, instance_ref=self.instance.get_ref()) as context:
            self.share.join(context, source, TARGET, DRAIN)

    def queue(self, status: DagsterRunStatus, **how: Any) -> str:
        job = dg.Definitions(assets=[self.asset]).resolve_implicit_global_asset_job_def()
        return self.instance.create_run_for_job(job, status=status, **how).run_id

    def busy(self) -> list[int]:
        return sorted(number for _, number in self.share.in_flight(PLACES))


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> Callable[..., Sharing]:
    return lambda partitioned=True: Sharing(monkeypatch, instance, partitioned)


def test_runs_in_flight_are_those_of_the_instance_whoever_started_them(sharing: Callable[..., Sharing]) -> None:
    some = sharing()
    some.join()
    assert some.busy() == []
    by_hand = some.queue(DagsterRunStatus.STARTED, asset_selection=frozenset([ASSET]), tags={"dagster/partition": "2"})
    some.queue(DagsterRunStatus.SUCCESS, asset_selection=frozenset([ASSET]), tags={"dagster/partition": "3"})
    assert some.busy() == [2]
    span = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}
    some.queue(DagsterRunStatus.CANCELING, asset_selection=frozenset([ASSET]), tags=span)
    assert some.busy() == [0, 1, 2]
    some.instance.delete_run(by_hand)
    assert some.busy() == [0, 1]


def test_a_run_in_a_process_of_its_own_is_in_flight_too(sharing: Callable[..., Sharing]) -> None:
    """Dagster notes no selection for it, or an empty one."""
    some = sharing()
    some.join()
    assert dg.materialize([some.asset], selection=[some.asset], partition_key="2", instance=some.instance).success
    span = {"dagster/asset_partition_range_start": "1", "dagster/asset_partition_range_end": "2"}
    assert dg.materialize([some.asset], selection=[some.asset], tags=span, instance=some.instance).success
    assert some.seen_in_run == [[2], [1, 2]]
    assert some.busy() == []


def test_a_run_that_is_only_asked_for_counts_until_it_is_there_and_not_for_ever(
    sharing: Callable[..., Sharing],
) -> None:
    some = sharing()
    some.join()
    some.share.requested([dg.RunRequest(run_key="one#1"), dg.RunRequest(run_key="two#1")], [[0, 1], [3]])
    assert some.busy() == [0, 1, 3]
    done = {"dagster/partition": "3", "dagster/run_key": "two#1"}
    some.queue(DagsterRunStatus.SUCCESS, asset_selection=frozenset([ASSET]), tags=done)
    assert some.busy() == [0, 1], "its run is over already"
    some.now_s += 14
    assert some.busy() == [0, 1]
    some.now_s += 1
    assert some.busy() == [], "nobody made it: a tick that was tried out"


def test_nothing_is_given_away_while_a_tick_decides(sharing: Callable[..., Sharing]) -> None:
    some = sharing()
    some.join()
    with some.share.deciding(), some.share.deciding():
        assert some.busy() == [0, 1, 2, 3]
    assert some.busy() == []


def test_the_member_asks_an_instance_of_its_own_on_its_own_thread(sharing: Callable[..., Sharing]) -> None:
    """The tick's instance is closed when the tick is over."""
    some = sharing()
    some.join()
    some.queue(DagsterRunStatus.STARTED, asset_selection=frozenset([ASSET]), tags={"dagster/partition": "2"})
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(some.busy()))
    thread.start()
    thread.join()
    assert found == [[2]]


def test_the_other_topics_go_with_the_first(sharing: Callable[..., Sharing]) -> None:
    some = sharing()
    assert some.share.owned(TARGET, 4) is None
    some.join()
    some.member.given = frozenset([("orders", 1), ("orders", 2)])
    assert some.share.owned(TARGET, 4) == {(topic, number) for topic in TOPICS for number in (1, 2)}
    some.member.given = None
    assert some.share.owned(TARGET, 4) is None


def test_an_unpartitioned_asset_belongs_to_whoever_has_partition_0(sharing: Callable[..., Sharing]) -> None:
    some = sharing(partitioned=False)
    some.join()
    some.member.given = frozenset([("orders", 1)])
    assert some.share.owned(TARGET, 3) == frozenset()
    some.member.given = frozenset([("orders", 0)])
    assert some.share.owned(TARGET, 3) == {(topic, number) for topic in TOPICS for number in range(3)}
    some.queue(DagsterRunStatus.STARTED, asset_selection=frozenset([ASSET]))
    assert some.busy() == [0]


def test_a_share_that_gets_no_ticks_is_given_away(sharing: Callable[..., Sharing]) -> None:
    some = sharing()
    some.join(idle_timeout_s=20)
    some.now_s += 19.9
    some.join(idle_timeout_s=20)
    some.now_s += 19.9
    assert some.share.is_needed()
    some.now_s += 0.2
    with some.share.deciding():
        assert some.share.is_needed(), "a tick that takes long"
    assert not some.share.is_needed()


def test_a_source_that_shares_nothing_has_no_member(sharing: Callable[..., Sharing], manager: KafkaIOManager) -> None:
    some = sharing()
    with dg.build_sensor_context(instance=some.instance) as context:
        assert some.share.join(context, manager.source, TARGET, DRAIN) is None
    assert some.share.tags() == {}


# ------------------------------------------------------------------------------------------- who did the work


def test_a_run_says_which_deployment_asked_for_it_and_which_process_does_it() -> None:
    tags = {INSTANCE: "blue", WORKER: "host-1/pid-7", LEASE: "shop.enriched.owners/m/3"}
    who = distribution_of(tags, "shop.enriched", None)
    assert (who.instance, who.group, who.lease) == ("blue", "shop.enriched", "shop.enriched.owners/m/3")
    assert who.worker is not None
    assert who.worker != "host-1/pid-7"
    assert provenance_headers(who) == (
        ("kpipe.instance", b"blue"),
        ("kpipe.worker", who.worker.encode()),
        ("kpipe.lease", b"shop.enriched.owners/m/3"),
    )


def test_a_run_that_no_sensor_asked_for_names_the_deployment_or_else_the_host() -> None:
    named = distribution_of({}, "g", PartitionOwnership(instance_id="green"))
    assert (named.instance, named.lease) == ("green", None)
    assert "/pid-" in str(named.worker)
    for shared in (None, PartitionOwnership()):
        plain = distribution_of({}, "g", shared)
        assert plain.instance
        assert str(plain.worker).startswith("pid-")
        assert [name for name, _ in provenance_headers(plain)] == ["kpipe.instance", "kpipe.worker"]


# ----------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": "newest"},
        {"instance_id": ""},
        {"session_timeout_s": 0},
        {"drain_deadline_s": -1},
        {"idle_timeout_s": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PartitionOwnership(**wrong)


def test_the_name_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, manager: KafkaIOManager) -> None:
    monkeypatch.setenv("DEPLOYMENT", "blue")
    source = KafkaSource(
        connection=manager.source.connection, ownership=PartitionOwnership(instance_id=dg.EnvVar("DEPLOYMENT"))
    )
    seen: list[PartitionOwnership | None] = []

    @dg.asset
    def look(kafka: KafkaSource) -> None:
        seen.append(kafka.ownership)

    assert dg.materialize([look], resources={"kafka": source}).success
    assert [each.instance_id for each in seen if each is not None] == ["blue"]


@pytest.mark.parametrize("mode", RebalanceMode)
def test_both_rebalance_modes_are_the_members(mode: RebalanceMode) -> None:
    connection = sharing_manager("localhost:1", "shop", mode).source.connection.settings
    made = PartitionOwnership(session_timeout_s=7).member(connection, f"g-{mode.value}", "orders", rebalance_mode=mode)
    assert isinstance(made, ConsumerGroupOwnership)
    assert made.settings.rebalance_mode == mode.value
    assert (made.settings.topics, made.settings.session_timeout_s) == (("orders",), 7)
    registry._running.pop(("localhost:1", f"g-{mode.value}"))


# ------------------------------------------------------------------------------------------------ a real member


@pytest.mark.broker
def test_a_member_whose_sensor_was_turned_off_leaves_and_comes_back_with_it(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager
) -> None:
    servers = manager.source.connection.settings.bootstrap_servers
    shared = sharing_manager(servers, manager.source.group_prefix, DRAIN, idle_timeout_s=2.0, session_timeout_s=6)
    sensing = make_sensing(2, manager=shared, options={"minimum_interval_seconds": 0})
    sensing.send(1)

    def until(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)

    leases: list[str] = []

    def asks() -> bool:
        leases[:] = [request.tags["kpipe/lease"] for request in sensing.tick().run_requests or []]
        return bool(leases)

    until(asks)
    first = registry._running[(servers, sensing.group)]
    assert leases == [first.lease]
    until(lambda: first.is_closed)
    until(asks)
    second = registry._running[(servers, sensing.group)]
    assert second is not first
    assert leases == [second.lease]
    second.close(drain=False)


def test_a_tick_does_not_wait_for_a_broker_that_is_away(
    make_share_away: Callable[[], Sensing],
) -> None:
    sensing = make_share_away()
    began = time.monotonic()
    for _ in range(2):
        made = sensing.tick()
        assert made.skip_message
        assert not made.run_requests
    assert time.monotonic() - began < 20


@pytest.fixture
def make_share_away(instance: dg.DagsterInstance) -> Iterator[Callable[[], Sensing]]:
    servers = "localhost:1"

    def produce(*_: Any, **__: Any) -> None: ...

    def make() -> Sensing:
        shared = sharing_manager(servers, "away", DRAIN)
        return Sensing("orders", "enriched", shared, instance, produce, keep, options={"deadline_s": 2})  # type: ignore[arg-type]

    yield make
    registry._running[(servers, "away.enriched")].close(drain=False)
