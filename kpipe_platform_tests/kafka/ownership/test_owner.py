"""Owners of a topic's partitions on a real broker: each partition has one, whoever comes, goes or dies."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

import kpipe_platform
from kpipe_platform.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    FencedError,
    ForeignMemberError,
    KpipeError,
    TerminalError,
    TopicNotFoundError,
)
from kpipe_platform.kafka.admin.groups import committed_offsets, group_members
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.events import OwnershipEvent
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.kafka.ownership.registry import ownership_of
from kpipe_platform.kafka.ownership.settings import OwnershipProtocol
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.broker.listeners import BrokerListener
from kpipe_platform.testing.records import produce
from kpipe_platform.testing.topics import create_topic

pytestmark = pytest.mark.broker

# Long enough for a busy machine not to lose a live member, seconds. A classic member sends four heartbeats in it, so it
# also decides how long a rebalance takes.
SESSION_S = 2.0
# The same for members of KIP-848, of whom a heartbeat is expected every half second.
CONSUMER_SESSION_S = 4.0
# What has not been taken away after this is not taken away at all, seconds.
LONGER_THAN_A_SESSION_S = {"classic": SESSION_S + 1, "consumer": CONSUMER_SESSION_S + 1}
# What a takeover needs beside the session timeout: the coordinator's look, a rebalance, a busy machine.
MARGIN_S = 15.0
# The fast tier takes the default protocol through everything, and the slow tier the other one.
PROTOCOLS = ["classic", pytest.param("consumer", marks=pytest.mark.slow)]
USER, PASSWORD = "owner", "owner-secret"
ALL = frozenset(range(6))

Start = Callable[..., ConsumerGroupOwnership]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker of this module's own: its sessions are short, it asks for rights, and it is stopped at times."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(int(CONSUMER_SESSION_S * 1000)),
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.heartbeat.interval.ms": "500",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    listener = BrokerListener.sasl({USER: PASSWORD}, mechanisms=["PLAIN"])
    with EmbeddedBroker(settings=settings, extra_listeners=[listener]) as running:
        yield running


@pytest.fixture
def connection(broker: EmbeddedBroker) -> ConnectionSettings:
    return ConnectionSettings(broker.bootstrap_servers, request_timeout_s=5)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return create_topic(broker.bootstrap_servers, f"orders-{uuid.uuid4().hex[:8]}", partitions=6)


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start(connection: ConnectionSettings, group: str, topic: str) -> Iterator[Start]:
    """Starts a deployment; all that are left are closed in the end."""
    started: list[ConsumerGroupOwnership] = []

    def begin(**changes: Any) -> ConsumerGroupOwnership:
        options: dict[str, Any] = {"session_timeout_s": SESSION_S, **changes}
        made = ConsumerGroupOwnership(
            options.pop("connection", connection),
            options.pop("group", group),
            options.pop("topics", [topic]),
            **options,
        )
        made.start()
        started.append(made)
        return made

    yield begin
    for each in started:
        each.close(drain=False)


class Events:
    """Collects events, and lets a test wait for one."""

    def __init__(self) -> None:
        self.all: list[OwnershipEvent] = []

    def __call__(self, event: OwnershipEvent) -> None:
        self.all.append(event)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.all]

    def of(self, kind: str) -> list[OwnershipEvent]:
        return [event for event in self.all if event.kind == kind]


def until(condition: Callable[[], object], deadline_s: float = 40.0) -> float:
    """Wait until the condition holds; returns how long that took, seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < deadline_s, "the condition did not come true"
        time.sleep(0.05)
    return time.monotonic() - began


def wait_until_usable(broker: EmbeddedBroker) -> None:
    """Wait until a broker that was away takes new topics again: its own controller has to trust it first."""

    def takes_a_topic() -> bool:
        try:
            create_topic(broker.bootstrap_servers, f"probe-{uuid.uuid4().hex[:8]}", deadline_s=5)
        except (KpipeError, TimeoutError, FutureTimeoutError):
            return False
        return True

    until(takes_a_topic, deadline_s=60)


def numbers(owner: ConsumerGroupOwnership) -> frozenset[int]:
    return frozenset(number for _, number in owner.owned() or ())


def shared(*owners: ConsumerGroupOwnership, among: frozenset[int] = ALL) -> bool:
    """Whether each partition has exactly one owner, and each owner has some."""
    parts = [numbers(owner) for owner in owners]
    return all(parts) and sorted(itertools.chain(*parts)) == sorted(among)


@contextmanager
def deployment(
    broker: EmbeddedBroker, group: str, topic: str, protocol: str, *instance: str
) -> Iterator[subprocess.Popen[str]]:
    root = Path(kpipe_platform.__file__).parent.parent
    command = [
        sys.executable,
        "-m",
        "kpipe_platform_tests.kafka.ownership.owning",
        broker.bootstrap_servers,
        group,
        topic,
    ]
    child = subprocess.Popen(
        [*command, protocol, str(SESSION_S), *instance],
        cwd=root,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        try:
            yield child
        finally:
            child.kill()
            child.wait()


def says(child: subprocess.Popen[str], wanted: Callable[[list[int]], bool]) -> None:
    """Read what a deployment tells until it owns what is wanted."""
    assert child.stdout is not None
    for line in child.stdout:
        if wanted(json.loads(line) or []):
            return
    pytest.fail(f"the deployment ended with {child.wait()}")


# ---------------------------------------------------------------------------------- who owns which partition


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_share_all_and_one_that_leaves_is_replaced_at_once(
    protocol: str, start: Start, group: str, topic: str, connection: ConnectionSettings, broker: EmbeddedBroker
) -> None:
    produce(broker.bootstrap_servers, topic, [{"value": b"x", "partition": n} for n in range(6)])
    # Longer than the other tests' sessions: a member that left must be told from one whose session ran out.
    first = start(protocol=protocol, session_timeout_s=6.0)
    until(lambda: numbers(first) == ALL)
    second = start(protocol=protocol, session_timeout_s=6.0)
    until(lambda: shared(first, second))
    assert len(numbers(first)) == 3
    with Clients(connection) as clients:
        assert len(group_members(clients, f"{group}.owners")) == 2
        assert group_members(clients, group) == [], "the asset's own group has no member: runs refuse foreign ones"
        stored = committed_offsets(clients, f"{group}.owners", [(topic, n) for n in range(6)])
        assert set(stored.values()) == {None}
    left = numbers(second)
    second.close()
    assert second.owned() is None
    assert second.state().status == "closed"
    # A session runs out at least so long after the last heartbeat.
    assert until(lambda: numbers(first) == ALL) < (4.5 if protocol == "classic" else CONSUMER_SESSION_S - 0.5)
    assert left <= numbers(first)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_that_is_stopped_or_killed_is_replaced_and_believes_in_nothing_when_it_goes_on(
    protocol: str, start: Start, group: str, topic: str, broker: EmbeddedBroker
) -> None:
    """A paused machine: when it wakes, others own its partitions already."""
    survivor = start(protocol=protocol)
    until(lambda: numbers(survivor) == ALL)
    with deployment(broker, group, topic, protocol) as other:
        says(other, lambda owned: len(owned) == 3)
        until(lambda: len(numbers(survivor)) == 3)
        other.send_signal(signal.SIGSTOP)
        assert until(lambda: numbers(survivor) == ALL) < CONSUMER_SESSION_S + MARGIN_S
        other.send_signal(signal.SIGCONT)
        says(other, lambda owned: owned == [])
        says(other, lambda owned: len(owned) == 3)
        until(lambda: len(numbers(survivor)) == 3)
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert until(lambda: numbers(survivor) == ALL) < CONSUMER_SESSION_S + MARGIN_S


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_finds_its_partitions_again_and_nobody_notices(protocol: str, start: Start) -> None:
    events = Events()
    blue = start(protocol=protocol, instance_id="blue", listener=events)
    green = start(protocol=protocol, instance_id="green")
    until(lambda: shared(blue, green))
    before, theirs = numbers(blue), numbers(green)
    seen = len(events.all)
    green.close()
    again = start(protocol=protocol, instance_id="green")
    until(lambda: numbers(again) == theirs)
    assert numbers(blue) == before
    assert len(events.all) == seen
    assert again.instance == "green"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_that_was_killed_comes_back(
    protocol: str, start: Start, group: str, topic: str, broker: EmbeddedBroker
) -> None:
    """The new protocol refuses the name until the session of the dead one is over."""
    with deployment(broker, group, topic, protocol, "blue") as first:
        says(first, lambda owned: len(owned) == 6)
        first.send_signal(signal.SIGKILL)
        first.wait()
    again = start(protocol=protocol, instance_id="blue")
    if protocol == "consumer":
        until(lambda: again.state().status == "failed")
        with pytest.raises(ForeignMemberError, match="another process is a member with the same instance_id 'blue'"):
            again.owned()
    until(lambda: again.state().status == "member" and numbers(again) == ALL)


def test_a_static_member_whose_name_is_taken_stays_out(start: Start, group: str) -> None:
    first = start(instance_id="blue")
    until(lambda: numbers(first) == ALL)
    second = start(instance_id="blue")
    until(lambda: numbers(second) == ALL)
    until(lambda: first.state().status == "failed")
    with pytest.raises(FencedError, match="another process joined with the same instance_id 'blue'") as caught:
        first.owned()
    assert "its own instance_id" in str(caught.value.fix)
    # It does not throw the second out in return: it has no thread that could.
    until(lambda: [thread.name for thread in threading.enumerate()].count(f"kpipe-owner-{group}") == 1)
    assert numbers(second) == ALL
    assert first.state().status == "failed"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_new_partitions_of_a_topic_are_owned(protocol: str, start: Start, broker: EmbeddedBroker) -> None:
    grows = create_topic(broker.bootstrap_servers, f"grows-{uuid.uuid4().hex[:8]}", partitions=3)
    first, second = start(protocol=protocol, topics=[grows]), start(protocol=protocol, topics=[grows])
    until(lambda: shared(first, second, among=frozenset(range(3))))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(grows, 6)])[grows].result(10)
    until(lambda: shared(first, second))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_deployments_than_partitions_leave_one_with_nothing(
    protocol: str, start: Start, broker: EmbeddedBroker
) -> None:
    small = create_topic(broker.bootstrap_servers, f"small-{uuid.uuid4().hex[:8]}")
    first = start(protocol=protocol, topics=[small])
    until(lambda: numbers(first) == {0})
    second = start(protocol=protocol, topics=[small])
    until(lambda: second.owned() is not None and first.owned() is not None)
    until(lambda: sorted([len(numbers(first)), len(numbers(second))]) == [0, 1])
    until(lambda: {first.state().status, second.state().status} == {"member"})


# ------------------------------------------------------------------------------------------------- draining


class Work:
    """Work in flight that a test begins and ends."""

    def __init__(self) -> None:
        self.on: frozenset[Partition] = frozenset()

    def begin(self, topic: str) -> None:
        self.on = frozenset((topic, number) for number in range(6))

    def end(self) -> None:
        self.on = frozenset()

    def __call__(self, asked: frozenset[Partition]) -> frozenset[Partition]:
        return asked & self.on


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_drain_waits_for_work_in_flight_and_keeps_the_rest(protocol: str, start: Start, topic: str) -> None:
    work, events = Work(), Events()
    first = start(protocol=protocol, in_flight=work, listener=events)
    until(lambda: numbers(first) == ALL)
    work.begin(topic)
    second = start(protocol=protocol)
    until(lambda: events.of("draining"))
    leaving = events.of("draining")[0].partitions
    kept = ALL - {number for _, number in leaving}
    assert len(leaving) == 3
    # For longer than the session timeout: nothing of it is admitted, nothing of it is given away, and the others
    # are still believed in, because the coordinator goes on answering.
    begun = time.monotonic()
    while time.monotonic() - begun < LONGER_THAN_A_SESSION_S[protocol]:
        assert numbers(first) == kept
        assert first.state().draining == leaving
        assert numbers(second) == frozenset()
        time.sleep(0.05)
    work.end()
    until(lambda: shared(first, second))
    assert events.kinds() == ["assigned", "draining", "drained", "revoked"]
    assert events.of("revoked")[0].in_flight == frozenset()
    assert first.state().draining == frozenset()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_drain_yields_at_its_deadline(protocol: str, start: Start, topic: str) -> None:
    work, events = Work(), Events()
    first = start(protocol=protocol, in_flight=work, listener=events, drain_deadline_s=1.0)
    until(lambda: numbers(first) == ALL)
    work.begin(topic)
    second = start(protocol=protocol)
    until(lambda: events.of("draining"))
    until(lambda: events.of("revoked"))
    until(lambda: shared(first, second))
    revoked = events.of("revoked")[0]
    assert events.kinds() == ["assigned", "draining", "revoked"]
    assert revoked.in_flight == revoked.partitions
    assert revoked.reason == "work was still in flight after 1 s"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_other_mode_yields_at_once(protocol: str, start: Start, topic: str) -> None:
    work, events = Work(), Events()
    work.begin(topic)
    first = start(
        protocol=protocol, in_flight=work, listener=events, rebalance_mode="stop_accepting_new_work_and_yield"
    )
    until(lambda: numbers(first) == ALL)
    second = start(protocol=protocol)
    until(lambda: shared(first, second))
    assert events.kinds() == ["assigned", "revoked"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_closing_drains_too_unless_told_not_to(protocol: str, start: Start, topic: str) -> None:
    work, events = Work(), Events()
    first = start(protocol=protocol, in_flight=work, listener=events)
    until(lambda: numbers(first) == ALL)
    second = start(protocol=protocol)
    until(lambda: shared(first, second))
    theirs = numbers(second)
    work.begin(topic)
    closing = threading.Thread(target=first.close)
    closing.start()
    until(lambda: len(events.of("draining")) == 2)
    begun = time.monotonic()
    while time.monotonic() - begun < LONGER_THAN_A_SESSION_S[protocol]:
        assert first.owned() is None
        assert numbers(second) == theirs, "what drains is not given away"
        time.sleep(0.05)
    first.close(drain=False)
    closing.join()
    until(lambda: numbers(second) == ALL)
    assert events.of("revoked")[-1].reason == "this deployment is leaving without waiting for work in flight"


def test_one_that_is_needed_no_longer_drains_and_leaves(start: Start, topic: str) -> None:
    work, events, needed = Work(), Events(), [True]
    first = start(in_flight=work, listener=events, is_needed=lambda: needed[0])
    until(lambda: numbers(first) == ALL)
    second = start()
    until(lambda: shared(first, second))
    work.begin(topic)
    needed[0] = False
    until(lambda: first.is_closed)
    until(lambda: len(events.of("draining")) == 2)
    assert len(numbers(second)) == 3
    work.end()
    until(lambda: numbers(second) == ALL)
    assert events.of("revoked")[-1].reason == "no work is in flight"


# ------------------------------------------------------------------------------------ when the broker is away


# How much later than the session timeout a member may notice it: the client looks once a second.
NOTICED_S = 1.5


def none_left(owners: Iterable[ConsumerGroupOwnership], silent_since: float) -> None:
    """Wait until nobody has a partition, which nobody may once a session has passed since the last answer."""

    def look() -> bool:
        asked_at = time.monotonic()
        believers = [owner for owner in owners if numbers(owner)]
        assert not believers or asked_at - silent_since < SESSION_S + NOTICED_S
        return not believers

    until(look)


def test_a_broker_that_answers_no_more_ends_the_ownership(start: Start, broker: EmbeddedBroker, group: str) -> None:
    """With KIP-848 the brokers alone decide: the member learns it when they answer again."""
    events = {protocol: Events() for protocol in get_args(OwnershipProtocol)}
    owners = [start(protocol=each, group=f"{group}-{each}", listener=events[each]) for each in events]
    until(lambda: all(numbers(owner) == ALL for owner in owners))
    [classic, _] = owners
    pid = broker.pids[0]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        # Measured from the stop, which is later than the last answer.
        none_left([classic], time.monotonic())
        until(lambda: events["classic"].of("lost"))
        assert classic.owned() == frozenset()
        state = classic.state()
        assert state.status == "uncertain"
        assert {number for _, number in state.lost} == ALL
        assert classic.lease is None
    finally:
        os.kill(pid, signal.SIGCONT)
        wait_until_usable(broker)
    until(lambda: all(numbers(owner) == ALL and owner.state().status == "member" for owner in owners))
    assert {each: seen.kinds()[-1] for each, seen in events.items()} == dict.fromkeys(events, "assigned")


@pytest.mark.slow
def test_a_broker_that_is_gone_ends_the_ownership_and_its_return_renews_it(
    start: Start, broker: EmbeddedBroker, group: str
) -> None:
    """With both protocols, two deployments each; with KIP-848 only the brokers can end it."""
    pairs = [[start(protocol=each, group=f"{group}-{each}") for _ in range(2)] for each in get_args(OwnershipProtocol)]
    until(lambda: all(shared(*pair) for pair in pairs))
    broker.kill_broker(0)
    try:
        none_left(pairs[0], time.monotonic())
    finally:
        broker.start_broker(0)
        wait_until_usable(broker)
    until(lambda: all(shared(*pair) for pair in pairs), deadline_s=90)


def test_a_broker_that_was_never_there_is_no_error_and_gives_nothing(start: Start) -> None:
    """Only a port that hangs up: what is counted is how often the member tries."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.settimeout(40)
        owner = start(connection=ConnectionSettings(f"127.0.0.1:{port.getsockname()[1]}", request_timeout_s=1))
        for _ in range(3):
            port.accept()[0].close()
            assert owner.owned() is None
            assert owner.state().status == "joining"
        began = time.monotonic()
        owner.close()
        assert time.monotonic() - began < 10


# ------------------------------------------------------------------------------------------------ refusals


def sasl(broker: EmbeddedBroker, password: str = PASSWORD) -> ConnectionSettings:
    return ConnectionSettings(
        broker.listener("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=USER,
        sasl_password=password,
        request_timeout_s=5,
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refused_credentials_are_an_error_not_an_empty_set(protocol: str, start: Start, broker: EmbeddedBroker) -> None:
    owner = start(connection=sasl(broker, "wrong-secret"), protocol=protocol)
    until(lambda: owner.state().status == "failed")
    with pytest.raises(AuthenticationFailedError, match="cannot join group") as caught:
        owner.owned()
    assert "wrong-secret" not in str(caught.value)


@contextmanager
def denied(broker: EmbeddedBroker, kind: ResourceType, name: str) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    rule = AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.DENY
    )
    for future in admin.create_acls([rule]).values():
        future.result(10)
    try:
        yield
    finally:
        which = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.DENY
        )
        for future in admin.delete_acls([which]).values():
            future.result(10)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("what", ["group", "topic"])
def test_a_missing_acl_is_an_error_until_it_is_granted(
    what: str, protocol: str, start: Start, broker: EmbeddedBroker, group: str, topic: str
) -> None:
    kind, name = (ResourceType.GROUP, f"{group}.owners") if what == "group" else (ResourceType.TOPIC, topic)
    with denied(broker, kind, name):
        owner = start(connection=sasl(broker), protocol=protocol)
        until(lambda: owner.state().status == "failed")
        with pytest.raises(AuthorizationFailedError):
            owner.owned()
    until(lambda: owner.state().status == "member" and numbers(owner) == ALL)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_topic_that_is_missing_is_an_error_until_it_is_there(
    protocol: str, start: Start, broker: EmbeddedBroker
) -> None:
    late = f"late-{uuid.uuid4().hex[:8]}"
    owner = start(protocol=protocol, topics=[late])
    until(lambda: owner.state().status == "failed")
    with pytest.raises(TopicNotFoundError) as caught:
        owner.owned()
    assert caught.value.topic == late
    create_topic(broker.bootstrap_servers, late, partitions=6)
    until(lambda: owner.state().status == "member" and numbers(owner) == ALL)


def test_a_session_timeout_that_the_brokers_do_not_take_is_an_error(start: Start) -> None:
    owner = start(session_timeout_s=0.5)
    until(lambda: owner.state().status == "failed")
    with pytest.raises(TerminalError, match=r"do not accept a session timeout of 0\.5 s"):
        owner.owned()


# --------------------------------------------------------------------------------------- one a process, and more


def test_each_tick_finds_the_member_that_runs(connection: ConnectionSettings, group: str, topic: str) -> None:
    def find(name: str = group, session_s: float = SESSION_S, **callbacks: Any) -> ConsumerGroupOwnership:
        return ownership_of(ConsumerGroupOwnership(connection, name, [topic], session_timeout_s=session_s, **callbacks))

    events = Events()
    first = find()
    until(lambda: numbers(first) == ALL)
    assert find(listener=events) is first
    other = find(f"{group}-2")
    assert other is not first
    changed = find(session_s=SESSION_S + 1)
    assert changed is not first
    assert first.state().status == "closed"
    assert events.kinds() == ["revoked"], "the listener of the last call is the one that is told"
    until(lambda: numbers(changed) == ALL)
    for each in (other, changed):
        each.close()
    again = find(session_s=SESSION_S + 1)
    assert again is not changed, "one that was closed is not found again"


def test_a_forked_child_starts_a_member_of_its_own(broker: EmbeddedBroker, group: str, topic: str) -> None:
    """Parent and child share the partitions, and the parent has all again when the child has gone."""
    root = Path(kpipe_platform.__file__).parent.parent
    command = [
        sys.executable,
        "-m",
        "kpipe_platform_tests.kafka.ownership.forking",
        broker.bootstrap_servers,
        group,
        topic,
    ]
    ended = subprocess.run(
        [*command, str(SESSION_S)],
        cwd=root,
        text=True,
        capture_output=True,
        timeout=150,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    both = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len({each["member_id"] for each in both}) == 2
    assert [each["worker"] for each in both] == [f"pid-{each['pid']}" for each in both]
    assert len({each["pid"] for each in both}) == 2


def test_the_lease_names_the_membership(start: Start, group: str, connection: ConnectionSettings) -> None:
    owner = start()
    until(lambda: numbers(owner) == ALL)
    with Clients(connection) as clients:
        (member,) = group_members(clients, f"{group}.owners")
    assert owner.lease is not None
    assert owner.lease.startswith(f"{group}.owners/{member.member_id}/")
    before = owner.lease
    second = start()
    until(lambda: shared(owner, second))
    assert owner.lease != before
    assert second.lease is not None
    assert second.lease.split("/")[1] != owner.lease.split("/")[1]


def test_a_listener_that_fails_does_not_hurt(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def fails(event: OwnershipEvent) -> None:
        raise RuntimeError("the report is full")

    first = start(listener=fails)
    second = start()
    until(lambda: shared(first, second))
    assert "the report is full" in caplog.text
