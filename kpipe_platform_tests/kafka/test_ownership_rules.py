"""What a member may say it owns, how long a drain waits, and what is refused. No broker; the clock is the test's."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.offsets import Partition
from kpipe_platform.kafka.ownership_drain import drain
from kpipe_platform.kafka.ownership_ledger import CoordinatorContact, Ledger
from kpipe_platform.kafka.ownership_registry import Registry
from kpipe_platform.kafka.ownership_settings import OwnershipSettings
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


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(10.0, clock)


def statistics(at: float, rx: int, *, in_flight: int = 0, **requests: int) -> dict[str, Any]:
    coordinator = {"rx": rx, "waitresp_cnt": in_flight, "outbuf_cnt": 0, "outbuf_msg_cnt": 0, "req": requests}
    return {"ts": int(at * 1e6), "brokers": {"GroupCoordinator": coordinator}}


# -------------------------------------------------------------------------------------------- the ledger


def test_nothing_is_known_before_the_member_was_let_in(ledger: Ledger, clock: Clock) -> None:
    assert ledger.owned() is None
    ledger.assigned([P0])
    assert ledger.owned() is None, "an assignment counts from the first contact on"
    ledger.contact(clock.now)
    assert ledger.owned() == {P0}


def test_a_member_that_gets_nothing_owns_nothing(ledger: Ledger, clock: Clock) -> None:
    ledger.contact(clock.now)
    assert ledger.owned() == frozenset()


def test_silence_ends_the_ownership_even_if_nobody_looks(ledger: Ledger, clock: Clock) -> None:
    ledger.assigned([P0])
    ledger.contact(clock.now)
    clock.now += 9.9
    assert ledger.owned() == {P0}
    clock.now += 0.1
    assert ledger.owned() == frozenset()
    assert ledger.expire() == {P0}
    assert ledger.expire() == frozenset(), "told once"
    assert ledger.lost == {P0}


def test_after_a_silence_one_answer_is_not_enough(ledger: Ledger, clock: Clock) -> None:
    """The first may say that the member was struck off, which the client tells a moment later."""
    ledger.assigned([P0, P1])
    ledger.contact(clock.now)
    clock.now += 11
    ledger.expire()
    assert ledger.contact(clock.now) == frozenset()
    assert ledger.owned() == frozenset()
    clock.now += 1
    assert ledger.contact(clock.now) == {P0, P1}
    assert ledger.owned() == {P0, P1}
    assert ledger.lost == frozenset()


def test_what_was_taken_away_in_the_silence_does_not_come_back(ledger: Ledger, clock: Clock) -> None:
    ledger.assigned([P0, P1])
    ledger.contact(clock.now)
    clock.now += 11
    ledger.expire()
    ledger.contact(clock.now)
    assert ledger.lose([P0, P1]) == frozenset(), "they were told as lost already"
    clock.now += 1
    assert ledger.contact(clock.now) == frozenset()
    assert ledger.owned() == frozenset()
    ledger.assigned([P0])
    assert ledger.owned() == {P0}
    assert ledger.lost == {P1}


def test_an_old_contact_does_not_renew(ledger: Ledger, clock: Clock) -> None:
    ledger.assigned([P0])
    ledger.contact(clock.now)
    clock.now += 11
    for at in (101.0, 102.0, 103.0):
        ledger.contact(at - 1)
    clock.now += 2.5
    assert ledger.owned() == frozenset()


def test_draining_partitions_are_neither_owned_nor_free(ledger: Ledger, clock: Clock) -> None:
    ledger.assigned([P0, P1])
    ledger.contact(clock.now)
    ledger.drain([P1])
    assert (ledger.owned(), ledger.draining) == ({P0}, {P1})
    ledger.yielded([P1])
    assert (ledger.owned(), ledger.draining, ledger.lost) == ({P0}, frozenset(), frozenset())


def test_a_new_start_forgets_all(ledger: Ledger, clock: Clock) -> None:
    ledger.assigned([P0])
    ledger.contact(clock.now)
    assert ledger.start_over() == {P0}
    assert ledger.owned() is None
    assert ledger.lost == {P0}


# ------------------------------------------------------------------------------------------- the contact


def test_an_answer_counts_from_the_last_quiet_look_before_it(clock: Clock) -> None:
    contact = CoordinatorContact(clock)
    assert contact.observe(statistics(10.0, 5, Heartbeat=3)) is None, "nothing to compare with"
    clock.now += 1
    assert contact.observe(statistics(11.0, 5, in_flight=1, Heartbeat=4)) is None
    clock.now += 1
    assert contact.observe(statistics(12.0, 6, Heartbeat=4)) == 100.0
    clock.now += 1
    assert contact.observe(statistics(13.0, 6, Heartbeat=4)) is None, "no new answer"


def test_only_a_sessions_requests_prove_a_session(clock: Clock) -> None:
    contact = CoordinatorContact(clock)
    contact.observe(statistics(10.0, 5, ApiVersion=1))
    clock.now += 1
    assert contact.observe(statistics(11.0, 7, ApiVersion=2, Metadata=1)) is None
    clock.now += 1
    # The heartbeat of KIP-848 has no counter of its own.
    assert contact.observe(statistics(12.0, 8, ApiVersion=2, Metadata=1)) == 101.0


def test_documents_from_before_a_stop_of_the_process_renew_nothing(clock: Clock) -> None:
    contact = CoordinatorContact(clock)
    contact.observe(statistics(10.0, 5))
    clock.now += 60  # stopped, and gone on
    assert contact.observe(statistics(11.0, 6)) == 100.0, "made before the stop, read after it"
    late = contact.observe(statistics(71.0, 7))
    assert late == pytest.approx(100.0), "its answer may have come before the stop"


def test_no_coordinator_yet_is_no_contact(clock: Clock) -> None:
    assert CoordinatorContact(clock).observe({"ts": 1, "brokers": {}}) is None


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


def test_the_registry_keeps_one_a_key_and_ends_what_it_replaces() -> None:
    ended: list[str] = []
    registry: Registry[str] = Registry(ended.append)
    assert registry.find("k", "first", lambda found: True) == "first"
    assert registry.find("k", "second", lambda found: True) == "first"
    assert registry.find("other", "third", lambda found: True) == "third"
    assert registry.find("k", "fourth", lambda found: False) == "fourth"
    assert ended == ["first"]
    registry.close_all()
    assert sorted(ended) == ["first", "fourth", "third"]
    assert registry.find("k", "fifth", lambda found: True) == "fifth"
