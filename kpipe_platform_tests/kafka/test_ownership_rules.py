"""What a member owns, how long a drain waits, and what is refused. No broker; the clock is the test's."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.offsets import Partition
from kpipe_platform.kafka.ownership import ConsumerGroupOwnership
from kpipe_platform.kafka.ownership_drain import drain
from kpipe_platform.kafka.ownership_registry import ownership_of
from kpipe_platform.kafka.ownership_settings import OwnershipSettings
from kpipe_platform.kafka.ownership_status import NONE, Assignment
from kpipe_platform.kafka.settings import ConnectionSettings

P0, P1, P2 = ("t", 0), ("t", 1), ("t", 2)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


# ---------------------------------------------------------------------------------------- the assignment


def test_a_member_that_was_let_in_without_partitions_owns_nothing() -> None:
    assert not Assignment().joined
    assert Assignment().assign(NONE) == Assignment(joined=True)


def test_draining_partitions_are_neither_owned_nor_free() -> None:
    assignment = Assignment().assign(frozenset({P0, P1})).drain(frozenset({P1}))
    assert (assignment.owned, assignment.draining) == ({P0}, {P1})
    assignment = assignment.revoke(frozenset({P1}))
    assert (assignment.owned, assignment.draining, assignment.lost) == ({P0}, NONE, NONE)
    assert assignment.joined


def test_a_member_that_was_removed_owns_nothing_until_it_is_let_in_again() -> None:
    lost = Assignment().assign(frozenset({P0, P1, P2})).drain(frozenset({P2})).lose()
    assert (lost.joined, lost.owned, lost.draining, lost.lost) == (False, NONE, NONE, {P0, P1, P2})
    back = lost.assign(frozenset({P0}))
    assert (back.joined, back.owned, back.lost) == (True, {P0}, {P1, P2})


def test_each_change_has_a_number_and_an_empty_one_has_none() -> None:
    given = Assignment().assign(frozenset({P0, P1}))
    assert [given.changes, given.assign(NONE).changes, given.assign(frozenset({P2})).changes] == [1, 1, 2]
    draining = given.drain(frozenset({P1}))
    assert [draining.changes, draining.revoke(frozenset({P1})).changes] == [1, 2]
    assert [draining.lose().changes, draining.lose().lose().changes] == [2, 2]


# --------------------------------------------------------------------------------------------- the drain


def drained(clock: Clock, in_flight: Any, **changes: Any) -> tuple[frozenset[Partition], str]:
    options: dict[str, Any] = {"deadline_s": 5.0, "clock": clock, "wait": clock.wait, "why_stop": lambda: None}
    return drain(frozenset({P0, P1}), in_flight, **{**options, **changes})


def test_a_drain_ends_with_the_last_work(clock: Clock) -> None:
    left, _ = drained(clock, lambda asked: {P1} if clock.now < 103 else set())
    assert left == frozenset()
    assert 103 <= clock.now < 103.5


def test_a_drain_ends_at_its_deadline(clock: Clock) -> None:
    left, why = drained(clock, lambda asked: {P1, P2})
    assert left == {P1}, "work on other partitions is none of its business"
    assert why == "work was still in flight after 5 s"
    assert 105 <= clock.now < 105.5


def test_a_drain_that_cannot_tell_waits(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def away(asked: frozenset[Partition]) -> frozenset[Partition]:
        raise RuntimeError("the instance is away")

    assert drained(clock, away)[0] == {P0, P1}
    assert "the instance is away" in caplog.text


def test_a_drain_stops_for_a_reason(clock: Clock) -> None:
    left, why = drained(clock, lambda asked: {P0}, why_stop=lambda: "silent" if clock.now > 101 else None)
    assert (left, why) == ({P0}, "silent")
    assert clock.now < 102


def test_without_anybody_to_ask_nothing_is_waited_for(clock: Clock) -> None:
    assert drained(clock, None)[0] == frozenset()
    assert clock.now == 100.0


# ------------------------------------------------------------------------------------------ the settings


def settings(extra: dict[str, str] | None = None, **changes: Any) -> OwnershipSettings:
    given: dict[str, Any] = {"connection": ConnectionSettings("localhost:9092", librdkafka=extra or {})}
    return OwnershipSettings(**{**given, "group": "kpipe.a", "topics": ("t",), **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"group": ""}, "no name", id="no group"),
        pytest.param({"topics": ()}, "no topic", id="no topic"),
        pytest.param({"topics": ("t", "")}, "no topic", id="an empty topic"),
        pytest.param({"protocol": "share"}, "protocol is 'share'", id="unknown protocol"),
        pytest.param({"rebalance_mode": "wait"}, "rebalance_mode is 'wait'", id="unknown mode"),
        pytest.param({"instance_id": ""}, "instance_id is empty", id="empty instance"),
        pytest.param({"session_timeout_s": 0}, "session_timeout_s is 0", id="no session timeout"),
        pytest.param({"drain_deadline_s": -1}, "drain_deadline_s is -1", id="negative drain"),
        pytest.param({"drain_deadline_s": 86_400}, "max.poll.interval.ms", id="drain past Kafka's longest"),
        pytest.param({"extra": {"session.timeout.ms": "1"}}, "'session.timeout.ms' is set by kpipe", id="session"),
        pytest.param({"extra": {"max.poll.interval.ms": "1"}}, "'max.poll.interval.ms' is set by", id="poll"),
    ],
)
def test_refused_before_anything_connects(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        settings(**changes)
    assert caught.value.fix


@pytest.mark.parametrize("drain_deadline_s", [0.0, 30.0, 3600.0])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_drain_always_ends_before_the_coordinator_runs_out_of_patience(
    protocol: str, drain_deadline_s: float
) -> None:
    config = settings(protocol=protocol, drain_deadline_s=drain_deadline_s).consumer_config()
    assert config["max.poll.interval.ms"] >= drain_deadline_s * 1000 + 30_000


def test_the_asset_s_own_group_is_never_joined_and_nothing_is_stored() -> None:
    config = settings().consumer_config()
    assert config["group.id"] == "kpipe.a.owners"
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False


def test_the_brokers_decide_the_session_of_the_new_protocol() -> None:
    new = settings(protocol="consumer", instance_id="blue").consumer_config()
    assert new["group.instance.id"] == "blue"
    assert not {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"} & new.keys()
    old = settings().consumer_config()
    assert (old["session.timeout.ms"], old["partition.assignment.strategy"]) == (10_000, "cooperative-sticky")


# ------------------------------------------------------------------------------------------ the registry


def test_a_process_keeps_one_owner_for_each_group_with_the_callbacks_of_the_last_call() -> None:
    def owner(group: str = "kpipe.a", **options: Any) -> ConsumerGroupOwnership:
        return ConsumerGroupOwnership(ConnectionSettings("localhost:1"), group, ["t"], **options)

    first = owner()
    assert ownership_of(first) is first
    again = owner(in_flight=lambda asked: asked)
    assert ownership_of(again) is first
    assert first.callbacks == again.callbacks
    other = owner("kpipe.b")
    assert ownership_of(other) is other
    changed = owner(session_timeout_s=7)
    assert ownership_of(changed) is changed
    assert ownership_of(owner(session_timeout_s=7)) is changed
