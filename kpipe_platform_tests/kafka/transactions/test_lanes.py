"""Lanes: split, whose turn it is, and commits in order on a real broker, whatever dies in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from kpipe_platform.errors import FencedError, KpipeError, OffsetConflictError, TransactionTimedOutError
from kpipe_platform.kafka.admin.groups import committed_offsets
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.kafka.transactions.lanes import LaneTransaction, settle, split, turn_of, unsettled
from kpipe_platform.kafka.transactions.slice import SliceTransaction, store_offsets
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform_tests.kafka.conftest import PlanNext

ONE = SliceCounts(read=1, written=1)


def whole(*ranges: tuple[int, int, int | None], fence: tuple[str, ...] = ()) -> Slice:
    """A slice over partitions 0, 1, ... given as (start, end, committed)."""
    planned = tuple(
        PlannedRange(OffsetRange("t", number, start, end), "id", 0, 100, committed)
        for number, (start, end, committed) in enumerate(ranges)
    )
    return Slice("g", "run", "s", planned, fence)


def stored(lane: int, *, lanes: int = 3, stopped: bool = False, run_id: str = "run", read: int = 0) -> CommitMetadata:
    return CommitMetadata("id", run_id, "s", "g/t/0", 0, SliceCounts(read), lane, lanes, stopped)


# Split


def test_lanes_share_the_offsets_and_begin_where_the_lane_before_ends() -> None:
    lanes = split(whole((10, 20, None)), 3)
    assert [(lane.ranges[0].range.start, lane.ranges[0].range.end) for lane in lanes] == [(10, 13), (13, 16), (16, 20)]
    assert [lane.ranges[0].committed for lane in lanes] == [None, 13, 16]
    assert [lane.transactional_id for lane in lanes] == ["g/t/0", "g/t/0.lane-1", "g/t/0.lane-2"]
    assert {(lane.slice_id, lane.lanes) for lane in lanes} == {("s", 3)}


def test_each_lane_has_a_share_of_each_partition() -> None:
    lanes = split(whole((0, 10, 0), (4, 4, 4), (0, 1, None)), 2)
    shares = [[(p.range.start, p.range.end) for p in lane.ranges] for lane in lanes]
    assert shares == [[(0, 5), (4, 4), (0, 0)], [(5, 10), (4, 4), (0, 1)]]
    assert lanes[1].transactional_id == "g/t/all.lane-1"


def test_the_first_lane_fences_no_lane_of_its_own_slice() -> None:
    fenced = whole((0, 9, 0), fence=("g/t/0.lane-1", "g/t/0.lane-2", "g/t/0.lane-3", "g/t/all"))
    assert [lane.fence for lane in split(fenced, 3)] == [("g/t/0.lane-3", "g/t/all"), (), ()]


def test_what_was_lost_is_told_once() -> None:
    lost = OffsetRange("t", 0, 0, 5)
    lanes = split(replace(whole(), ranges=(replace(whole((5, 9, 0)).ranges[0], lost=lost),)), 2)
    assert [lane.ranges[0].lost for lane in lanes] == [lost, None]


# Turns


@pytest.mark.parametrize(
    ("found", "states"),
    [
        ((None, None), ["mine", "wait", "wait"]),
        ((3, stored(1)), ["earlier", "mine", "wait"]),
        ((6, stored(2)), ["earlier", "earlier", "mine"]),
        ((9, stored(3)), ["earlier", "earlier", "earlier"]),
        ((3, stored(1, stopped=True)), ["earlier", "stopped", "stopped"]),
        # The first lane stopped in a new group: it stored where the group begins.
        ((0, stored(0, stopped=True)), ["stopped", "stopped", "stopped"]),
    ],
)
def test_whose_turn_it_is(found: tuple[int | None, CommitMetadata | None], states: list[str]) -> None:
    lanes = split(whole((0, 9, None)), 3)
    assert [turn_of(lanes, lane, [found]).state for lane in range(3)] == states


def test_a_turn_tells_what_the_lanes_before_counted() -> None:
    lanes = split(whole((0, 9, 0)), 3)
    assert turn_of(lanes, 1, [(3, stored(1, read=3))]).counts == (SliceCounts(3),)
    assert turn_of(lanes, 0, [(0, None)]).counts == (SliceCounts(),)


@pytest.mark.parametrize(
    "found",
    [
        (3, stored(1, run_id="other")),
        (9, stored(3, run_id="other")),
        (3, None),
        (None, None),
        (5, stored(1)),
    ],
)
def test_an_offset_that_no_lane_of_the_slice_stored_is_a_conflict(
    found: tuple[int | None, CommitMetadata | None],
) -> None:
    lanes = split(whole((0, 9, 0)), 3)
    for lane in range(3):
        with pytest.raises(OffsetConflictError, match="run again"):
            turn_of(lanes, lane, [found])


def test_metadata_without_lanes_is_of_a_whole_slice() -> None:
    old = '{"kpipe":1,"topic_id":"i","run_id":"r","slice_id":"s","unit":"u","start":0,"counts":{"read":1}}'
    assert CommitMetadata.from_text(old) == CommitMetadata("i", "r", "s", "u", 0, SliceCounts(1))
    assert not unsettled({})


# On a broker


@pytest.fixture
def source(kafka_topic: TopicFactory, produce: Produce) -> str:
    name = kafka_topic("source")
    produce(name, [b"%d" % n for n in range(9)])
    return name


@pytest.fixture
def target(kafka_topic: TopicFactory) -> str:
    return kafka_topic("target")


@pytest.fixture
def lane_of(settings: ConnectionSettings, target: str) -> Callable[..., LaneTransaction]:
    """An opened lane that has written its number, acknowledged."""

    def make(lanes: tuple[Slice, ...], lane: int, timeout_s: float = 60.0) -> LaneTransaction:
        transaction = LaneTransaction(settings, lanes, lane, timeout_s=timeout_s)
        transaction.open()
        transaction.begin()
        transaction.producer.produce(target, b"%d" % lane)
        transaction.producer.flush()
        return transaction

    return make


LaneOf = Callable[..., LaneTransaction]


def finish(transaction: LaneTransaction) -> None:
    """Commit in turn."""
    turn = transaction.await_turn()
    assert turn.state == "mine"
    transaction.commit([before + ONE for before in turn.counts])


@pytest.mark.broker
def test_lanes_that_are_ready_in_another_order_commit_in_theirs(
    source: str, target: str, plan: PlanNext, lane_of: LaneOf, clients: Clients, group: str, consume: Consume
) -> None:
    lanes = split(plan(source), 3)
    ready = [lane_of(lanes, lane) for lane in (2, 1, 0)]
    committed: list[int] = []

    def work(transaction: LaneTransaction, lane: int) -> None:
        finish(transaction)
        committed.append(lane)

    threads = [threading.Thread(target=work, args=(t, lane)) for t, lane in zip(ready, (2, 1, 0), strict=True)]
    for thread in threads[:2]:
        thread.start()
    assert committed == []
    threads[2].start()
    for thread in threads:
        thread.join(30)
    for transaction in ready:
        transaction.close()
    assert committed == [0, 1, 2]
    found = committed_offsets(clients, group, [(source, 0)])[(source, 0)]
    assert found is not None
    assert found.offset == 9
    assert found.metadata is not None
    assert (found.metadata.lane, found.metadata.lanes, found.metadata.counts) == (3, 3, SliceCounts(3, 3))
    assert sorted(r.value or b"" for r in consume(target)) == [b"0", b"1", b"2"]


@pytest.mark.broker
def test_a_lane_that_stops_ends_those_behind_it_and_the_offset_stays_before_the_gap(
    source: str, target: str, plan: PlanNext, lane_of: LaneOf, clients: Clients, group: str, consume: Consume
) -> None:
    lanes = split(plan(source), 3)
    with lane_of(lanes, 0) as first, lane_of(lanes, 1) as second, lane_of(lanes, 2) as third:
        finish(first)
        second.stop(second.await_turn())
        assert third.await_turn().state == "stopped"
        third.stop(third.turn())
    found = committed_offsets(clients, group, [(source, 0)])
    assert found[(source, 0)] is not None
    assert found[(source, 0)].offset == 3  # type: ignore[union-attr]
    assert [r.value for r in consume(target)] == [b"0"]
    # The same run goes on with what is left, whole.
    rest = plan(source).rest([3], [3])
    with SliceTransaction(clients.settings, rest, timeout_s=60) as transaction:
        transaction.open()
        store_offsets(transaction, [SliceCounts(6)])
    assert not unsettled(committed_offsets(clients, group, [(source, 0)]))


@pytest.mark.broker
def test_a_lane_of_a_killed_run_that_is_late_commits_nothing(
    source: str, target: str, plan: PlanNext, lane_of: LaneOf, clients: Clients, group: str, consume: Consume
) -> None:
    lanes = split(plan(source), 3)
    with lane_of(lanes, 0) as first, lane_of(lanes, 1) as looked, lane_of(lanes, 2) as waits:
        finish(first)
        # This one has compared already, and would commit.
        turn = looked.await_turn()
        assert turn.state == "mine"
        found = committed_offsets(clients, group, [(source, 0)])
        assert unsettled(found)
        settle(clients.settings, group, found, run_id="other", slice_id="next")
        assert not unsettled(committed_offsets(clients, group, [(source, 0)]))
        with pytest.raises((FencedError, OffsetConflictError)):
            looked.commit([ONE])
        with pytest.raises(OffsetConflictError):
            waits.await_turn()
        # A lane whose task comes up only now.
        with lane_of(lanes, 1) as late, pytest.raises(OffsetConflictError):
            late.await_turn()
    next_slice = plan(source)
    assert next_slice.ranges[0].range.start == 3
    with SliceTransaction(clients.settings, next_slice, timeout_s=60) as transaction:
        transaction.open()
        assert transaction.committed_earlier() is None
        transaction.begin()
        transaction.producer.produce(target, b"next")
        transaction.producer.flush()
        transaction.commit([SliceCounts(6)])
    assert [r.value for r in consume(target)] == [b"0", b"next"]


@pytest.mark.broker
def test_lanes_of_two_runs_over_one_plan_write_once(
    source: str, target: str, plan: PlanNext, lane_of: LaneOf, consume: Consume
) -> None:
    one, other = split(plan(source), 2), split(plan(source), 2)
    with lane_of(one, 0) as a0, lane_of(one, 1) as a1, lane_of(other, 1) as b1, lane_of(other, 0) as b0:
        finish(b0)
        for zombie in (a0, a1):
            with pytest.raises((FencedError, OffsetConflictError)):
                finish(zombie)
        finish(b1)
    assert sorted(r.value or b"" for r in consume(target)) == [b"0", b"1"]


@pytest.mark.broker
def test_a_retried_lane_finds_that_an_earlier_attempt_committed(source: str, plan: PlanNext, lane_of: LaneOf) -> None:
    lanes = split(plan(source), 3)
    for lane in (0, 1):
        with lane_of(lanes, lane) as transaction:
            finish(transaction)
    with lane_of(lanes, 1) as again:
        turn = again.turn()
        assert (turn.state, turn.counts) == ("earlier", (SliceCounts(2, 2),))


@pytest.mark.broker
def test_a_lane_waits_no_longer_than_its_transaction_may_be_open(source: str, plan: PlanNext, lane_of: LaneOf) -> None:
    lanes = split(plan(source), 2)
    with lane_of(lanes, 1, timeout_s=1.0) as waits, pytest.raises(TransactionTimedOutError, match="did not commit"):
        waits.await_turn()


@pytest.mark.broker
def test_what_killed_lanes_left_open_is_aborted_by_the_next_slice(
    source: str,
    target: str,
    plan: PlanNext,
    lane_of: LaneOf,
    settings: ConnectionSettings,
    produce: Produce,
    consume: Consume,
) -> None:
    lanes = split(plan(source), 3)
    left = [lane_of(lanes, lane) for lane in range(3)]
    with SliceTransaction(settings, plan(source, lanes=3), timeout_s=60) as transaction:
        transaction.open()
        # Nobody who reads committed records has to wait for a timeout.
        produce(target, [b"seen"])
        assert [r.value for r in consume(target)] == [b"seen"]
    for transaction in left:
        with pytest.raises(KpipeError):
            transaction.commit([ONE])
        transaction.close()
