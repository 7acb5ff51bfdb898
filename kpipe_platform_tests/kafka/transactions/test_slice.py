"""The lock of the protocol, on a real broker: fence, compare, commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kpipe_platform.errors import (
    BrokerUnavailableError,
    CommitUnknownError,
    FencedError,
    OffsetConflictError,
    OffsetsPendingError,
    TransactionTimedOutError,
)
from kpipe_platform.kafka.admin.groups import committed_offsets
from kpipe_platform.kafka.client.calls import kafka_error
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.kafka.transactions.slice import SliceTransaction, store_offsets
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform_tests.kafka.conftest import PlanNext
from kpipe_platform_tests.processes import wait_until

pytestmark = pytest.mark.broker

COUNTS = [SliceCounts(read=3, written=2, dead_lettered=1)]


@pytest.fixture
def source(kafka_topic: TopicFactory, produce: Produce) -> str:
    name = kafka_topic("source")
    produce(name, [b"1", b"2", b"3"])
    return name


@pytest.fixture
def begin(settings: ConnectionSettings) -> Callable[..., SliceTransaction]:
    def make(slice_: Slice, timeout_s: float = 60.0) -> SliceTransaction:
        return SliceTransaction(settings, slice_, timeout_s=timeout_s)

    return make


def test_outputs_and_offsets_commit_together(
    source: str,
    plan: PlanNext,
    begin: Callable[..., SliceTransaction],
    clients: Clients,
    consume: Consume,
    kafka_topic: TopicFactory,
    group: str,
) -> None:
    target = kafka_topic("target")
    slice_ = plan(source, run_id="run-1")
    with begin(slice_) as transaction:
        transaction.open()
        assert transaction.committed_earlier() is None
        transaction.begin()
        transaction.producer.produce(target, b"x")
        transaction.producer.flush()
        assert consume(target) == []
        assert len(consume(target, isolation="read_uncommitted")) == 1
        transaction.commit(COUNTS)
    assert [r.value for r in consume(target)] == [b"x"]
    stored = committed_offsets(clients, group, [(source, 0)])[(source, 0)]
    assert stored is not None
    assert stored.offset == 3
    assert stored.metadata is not None
    assert (stored.metadata.run_id, stored.metadata.counts) == ("run-1", COUNTS[0])
    assert stored.metadata.topic_id == slice_.ranges[0].topic_id


def test_a_retried_attempt_finds_what_the_first_committed(
    source: str, plan: PlanNext, begin: Callable[..., SliceTransaction]
) -> None:
    slice_ = plan(source)
    for expected in (None, COUNTS):
        with begin(slice_) as transaction:
            transaction.open()
            assert transaction.committed_earlier() == expected
            if expected is None:
                transaction.begin()
                transaction.commit(COUNTS)


def test_another_runs_commit_is_a_conflict_that_names_it(
    source: str, plan: PlanNext, begin: Callable[..., SliceTransaction]
) -> None:
    loser, winner = plan(source, run_id="loser"), plan(source, run_id="winner")
    with begin(winner) as transaction:
        transaction.open()
        store_offsets(transaction, COUNTS)
    with begin(loser) as transaction:
        transaction.open()
        with pytest.raises(OffsetConflictError, match="now at 3 by run winner") as caught:
            transaction.committed_earlier()
    assert (caught.value.expected, caught.value.found) == (None, 3)


def test_a_zombie_is_fenced_at_its_commit(
    source: str, plan: PlanNext, begin: Callable[..., SliceTransaction], consume: Consume, kafka_topic: TopicFactory
) -> None:
    target = kafka_topic("target")
    zombie, owner = begin(plan(source)), begin(plan(source))
    with zombie, owner:
        zombie.open()
        assert zombie.committed_earlier() is None
        zombie.begin()
        zombie.producer.produce(target, b"zombie")
        zombie.producer.flush()
        owner.open()
        assert owner.committed_earlier() is None
        owner.begin()
        owner.producer.produce(target, b"owner")
        owner.producer.flush()
        with pytest.raises(FencedError, match="a newer run took over"):
            zombie.commit(COUNTS)
        owner.commit(COUNTS)
    assert [r.value for r in consume(target)] == [b"owner"]


def test_a_zombie_that_still_sends_is_told_that_it_is_fenced(
    source: str, kafka_topic: TopicFactory, plan: PlanNext, begin: Callable[..., SliceTransaction]
) -> None:
    """After the brokers' refusal the client says of each further record no more than that there was one."""
    target = kafka_topic("target")
    zombie, owner = begin(plan(source)), begin(plan(source))
    with zombie, owner:
        zombie.open()
        zombie.begin()
        zombie.producer.produce(target, b"zombie")
        zombie.producer.flush()
        owner.open()
        zombie.producer.produce(target, b"late")
        with suppress(SystemError, KafkaException):
            zombie.producer.flush()
        with pytest.raises(KafkaException) as caught:
            zombie.producer.produce(target, b"later")
        assert kafka_error(caught.value).code() == KafkaError._FATAL
        found = zombie.error(caught.value, "write outputs")
        assert isinstance(found, FencedError)
        assert "a newer run took over" in str(found)


def test_a_late_commit_of_offsets_alone_is_fenced_too(
    source: str, plan: PlanNext, begin: Callable[..., SliceTransaction]
) -> None:
    zombie, owner = begin(plan(source)), begin(plan(source))
    with zombie, owner:
        zombie.open()
        owner.open()
        with pytest.raises(FencedError):
            store_offsets(zombie, COUNTS)
        assert store_offsets(owner, COUNTS) == COUNTS


def test_what_a_killed_owner_left_open_is_aborted(
    source: str,
    plan: PlanNext,
    begin: Callable[..., SliceTransaction],
    consume: Consume,
    kafka_topic: TopicFactory,
    settings: ConnectionSettings,
    produce: Produce,
) -> None:
    target = kafka_topic("target")
    slice_ = plan(source)
    killed = Producer({**settings.for_librdkafka(), "transactional.id": slice_.transactional_id})
    killed.init_transactions(10)
    killed.begin_transaction()
    killed.produce(target, b"lost owner")
    killed.flush()
    produce(target, [b"after"])
    # Readers stop at the open transaction.
    assert consume(target) == []
    with begin(slice_) as transaction:
        transaction.open()
        assert [r.value for r in consume(target)] == [b"after"]
        store_offsets(transaction, COUNTS)


def test_the_compare_waits_for_a_pending_offset(
    source: str,
    plan: PlanNext,
    begin: Callable[..., SliceTransaction],
    settings: ConnectionSettings,
    clients: Clients,
    group: str,
) -> None:
    """An offset in another, undecided transaction is neither the old nor the new one."""
    slice_ = plan(source)
    rival = Producer({**settings.for_librdkafka(), "transactional.id": f"rival-{group}"})
    rival.init_transactions(10)
    rival.begin_transaction()
    member = Consumer({**settings.for_librdkafka(), "group.id": group})
    rival.send_offsets_to_transaction([TopicPartition(source, 0, 1)], member.consumer_group_metadata(), 10)
    short = ConnectionSettings(settings.bootstrap_servers, request_timeout_s=1.5)
    with SliceTransaction(short, slice_, timeout_s=60) as transaction:
        transaction.open()
        with pytest.raises(BrokerUnavailableError):
            transaction.committed_earlier()
    with Clients(short) as quick, pytest.raises(OffsetsPendingError, match="an open transaction has held"):
        committed_offsets(quick, group, [(source, 0)])
    rival.abort_transaction(10)
    with begin(slice_) as transaction:
        transaction.open()
        assert transaction.committed_earlier() is None
    member.close()


def test_a_transaction_older_than_its_timeout_says_so_and_the_next_run_succeeds(
    source: str,
    plan: PlanNext,
    begin: Callable[..., SliceTransaction],
    consume: Consume,
    kafka_topic: TopicFactory,
    settings: ConnectionSettings,
) -> None:
    target = kafka_topic("target")
    slice_ = plan(source)
    with begin(slice_, timeout_s=1.0) as transaction:
        transaction.open()
        transaction.begin()
        transaction.producer.produce(target, b"too late")
        transaction.producer.flush()
        # The broker aborts it: the record's end marker moves the last stable offset past it.
        _wait_until(lambda: _stable_end(settings, target) == 2)
        with pytest.raises(TransactionTimedOutError, match=r"longer than its timeout of 1 s"):
            transaction.commit(COUNTS)
    with begin(plan(source)) as transaction:
        transaction.open()
        transaction.begin()
        transaction.producer.produce(target, b"in time")
        transaction.producer.flush()
        transaction.commit(COUNTS)
    assert [r.value for r in consume(target)] == [b"in time"]


def _stable_end(settings: ConnectionSettings, topic: str) -> int:
    consumer = Consumer({**settings.for_librdkafka(), "group.id": "probe", "isolation.level": "read_committed"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 5)[1])
    finally:
        consumer.close()


def _wait_until(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.1)


def test_a_layout_change_fences_the_other_layouts_owner(
    kafka_topic: TopicFactory, produce: Produce, plan: PlanNext, begin: Callable[..., SliceTransaction]
) -> None:
    source = kafka_topic("source", partitions=2)
    produce(source, [{"value": b"1", "partition": 0}, {"value": b"2", "partition": 1}])
    both = plan(source, 0, 1)
    with begin(both) as transaction:
        transaction.open()
        store_offsets(transaction, [SliceCounts(1), SliceCounts(1)])
    produce(source, [{"value": b"3", "partition": 0}])
    # A run of the old layout holds its id while a run of one partition takes over.
    zombie, owner = begin(plan(source, 0, 1)), begin(plan(source, 0))
    with zombie, owner:
        zombie.open()
        owner.open()
        store_offsets(owner, [SliceCounts(1)])
        with pytest.raises((FencedError, OffsetConflictError)):
            store_offsets(zombie, [SliceCounts(1), SliceCounts(0)])


def test_no_broker_is_a_typed_error_within_the_deadline(plan: PlanNext, source: str) -> None:
    slice_ = plan(source)
    gone = ConnectionSettings("127.0.0.1:9", request_timeout_s=1.0)
    began = time.monotonic()
    with SliceTransaction(gone, slice_, timeout_s=60) as transaction, pytest.raises(BrokerUnavailableError):
        transaction.open()
    assert time.monotonic() - began < 5


def test_an_offset_past_an_open_transaction_waits_for_its_end(
    settings: ConnectionSettings, source: str, plan: PlanNext, begin: Callable[..., SliceTransaction]
) -> None:
    """The end that a committed read sees stands still there; the log goes on, so nothing was truncated."""
    writer = Producer({**settings.for_librdkafka(), "transactional.id": f"writer-of-{source}"})
    writer.init_transactions(10)
    writer.begin_transaction()
    for _ in range(4):
        writer.produce(source, b"open", partition=0)
    writer.flush(10)
    # An operator's choice, or a source that was read_uncommitted before.
    with begin(plan(source, isolation="read_uncommitted")) as moved:
        moved.open()
        store_offsets(moved, [SliceCounts()])

    waiting = plan(source)
    assert (waiting.ranges[0].range.start, waiting.is_empty, waiting.ranges[0].backlog) == (7, True, 0)

    writer.commit_transaction(10)
    wait_until(lambda: plan(source).ranges[0].range.end == 8, "the marker behind the records")
    assert not plan(source).ranges[0].is_past_stable


class Unanswered:
    """A producer whose brokers answer nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*_: object) -> None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        return call


@pytest.mark.parametrize("topic", ["orders", "commit-log"])
def test_only_a_commit_has_an_unknown_outcome(topic: str) -> None:
    """By the call that got no answer, not by the words of its error."""
    slice_ = Slice(f"commits.{topic}", "run", "slice", ())
    away = ConnectionSettings("127.0.0.1:9", request_timeout_s=1.0)
    with SliceTransaction(away, slice_, timeout_s=60) as transaction:
        transaction._producer = cast(Any, Unanswered())
        with pytest.raises(BrokerUnavailableError) as caught:
            transaction.begin()
        assert type(caught.value) is BrokerUnavailableError
        error = transaction.error(KafkaError(KafkaError._TIMED_OUT), f"commit-free work on {topic}")
        assert type(error) is BrokerUnavailableError
        with pytest.raises(CommitUnknownError, match="whether the transaction committed is not known"):
            transaction.commit([])
        transaction._producer = None


def test_the_client_of_a_zombie_cannot_begin_again(
    source: str, plan: PlanNext, begin: Callable[..., SliceTransaction]
) -> None:
    zombie, owner = begin(plan(source)), begin(plan(source))
    with zombie, owner:
        zombie.open()
        zombie.begin()
        zombie.producer.produce(source, b"never")
        owner.open()
        with pytest.raises((FencedError, KafkaException)):
            zombie.commit(COUNTS)
        assert owner.committed_earlier() is None
