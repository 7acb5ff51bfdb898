"""Any sequence of events on one partition: no record is skipped or repeated without a word of it.

Plans, compares and transactions are kpipe's own; the brokers are a model in memory, so that thousands of steps take
seconds. Runs go step by step, so that two of them may be anywhere at the same time, and die anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, get_args

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from kpipe_platform import KafkaConnection, KafkaSource, PartitionScaling
from kpipe_platform.errors import (
    CommitUnknownError,
    KpipeError,
    LostRangeError,
    OffsetsPendingError,
    TopicRecreatedError,
)
from kpipe_platform.kafka.admin.groups import CommittedOffset, Offsets
from kpipe_platform.kafka.admin.topics import TopicDescription
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.offsets import Partition, Watermarks
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.kafka.transactions import slice as transactions_module
from kpipe_platform.kafka.transactions.lanes import LaneTransaction, lanes_read_back, split
from kpipe_platform.kafka.transactions.slice import SliceTransaction, read_back
from kpipe_platform.resources.scaling import ExecutionMode
from kpipe_platform.slices.plan import facts as facts_module
from kpipe_platform.slices.plan.ranges import LastMaterialization

Fate = Literal["answered", "unanswered", "unsent", "killed"]
# Mostly all is well.
FATES = st.lists(st.sampled_from(["answered", "answered", "answered", *get_args(Fate)]), max_size=2)
GROUP, PLACE = "kpipe.a", ("t", 0)
CONNECTION = KafkaConnection(bootstrap_servers="127.0.0.1:9")
ONE = [SliceCounts(read=1, written=1)]


class Broker:
    """One partition, its group's offset, and who owns which transactional id."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.log_start, self.stable_end, self.log_end = 0, 9, 9
        self.offset: CommittedOffset | None = None
        self.owners: dict[str, FakeProducer] = {}
        # What happens to the next commits.
        self.fates: list[Fate] = []
        # Where the visible outputs of each topic id end.
        self.written: dict[str, int] = {}
        # How far they went at most.
        self.furthest: dict[str, int] = {}
        self.problems: list[str] = []

    @property
    def topic_id(self) -> str:
        return f"id-{self.incarnation}"

    @property
    def pending(self) -> bool:
        return any(owner.offsets for owner in self.owners.values())

    def init(self, transactional_id: str) -> FakeProducer:
        """Fence the last owner and abort what it left open."""
        if transactional_id in self.owners:
            self.owners[transactional_id].offsets.clear()
        made = self.owners[transactional_id] = FakeProducer(self, transactional_id)
        return made

    def committed(self, slice_: Slice) -> None:
        """Outputs of a slice, or of a lane, become visible: do they follow those before?"""
        (planned,) = slice_.ranges
        start, end = planned.range.start, planned.range.end
        before = self.written.get(planned.topic_id)
        if before is not None and start < before and not planned.resumed:
            self.problems.append(f"{planned} repeats from {start} up to {before} without a word")
        if before is not None and start > before and (planned.lost is None or planned.lost.start > before):
            self.problems.append(f"{planned} skips from {before} up to {start} without a word")
        if before is None and planned.lost is None and start > planned.log_start:
            self.problems.append(f"{planned} begins behind the first record")
        self.written[planned.topic_id] = end
        self.furthest[planned.topic_id] = max(end, self.furthest.get(planned.topic_id, 0))


class KilledError(BaseException):
    """The process is gone; nothing of it is cleaned up."""


class FakeClients:
    """Clients that ask nobody."""

    settings = CONNECTION.settings

    def __init__(self, *_: object) -> None: ...

    def consumer(self, *_: object) -> FakeClients:
        return self

    def consumer_group_metadata(self) -> None: ...

    def close(self) -> None: ...


class FakeProducer:
    """A transactional producer."""

    def __init__(self, broker: Broker, transactional_id: str) -> None:
        self.broker, self.id = broker, transactional_id
        self.slice: Slice | None = None
        self.offsets: list[TopicPartition] = []

    def _own(self) -> None:
        if self.broker.owners[self.id] is not self:
            raise KafkaException(KafkaError(KafkaError._FENCED))

    def begin_transaction(self) -> None:
        self._own()

    def produce(self, slice_: Slice) -> None:
        self.slice = slice_

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], *_: object) -> None:
        self._own()
        self.offsets = list(offsets)

    def commit_transaction(self, *_: object) -> None:
        self._own()
        broker = self.broker
        fate = broker.fates.pop(0) if broker.fates else "answered"
        if fate == "killed":
            raise KilledError
        if fate == "unsent":
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        for stored in self.offsets:
            broker.offset = CommittedOffset(stored.offset, CommitMetadata.from_text(stored.metadata))
        self.offsets = []
        if self.slice is not None:
            broker.committed(self.slice)
        self.slice = None
        if fate == "unanswered":
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def abort_transaction(self, *_: object) -> None:
        self._own()
        if not isinstance(sys.exception(), KilledError):
            self.offsets, self.slice = [], None

    def purge(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def brokers(broker: Broker) -> Iterator[None]:
    """Kpipe's calls go to the model."""

    def describe(_: object, topics: Iterable[str]) -> dict[str, TopicDescription]:
        return {topic: TopicDescription(topic, broker.topic_id, 1) for topic in topics}

    def offsets(*_: object, **__: object) -> Offsets:
        if broker.pending:
            # Asked for stable offsets, the coordinator holds its answer back.
            raise OffsetsPendingError("pending")
        return {PLACE: broker.offset}

    def watermarks(_: object, places: Iterable[Partition], isolation: str) -> dict[Partition, Watermarks]:
        end = broker.stable_end if isolation == "read_committed" else broker.log_end
        return dict.fromkeys(places, Watermarks(broker.log_start, end))

    replaced: list[tuple[Any, str, Any]] = [
        (facts_module, "describe_topics", describe),
        (facts_module, "group_members", lambda *_: []),
        (facts_module, "committed_offsets", offsets),
        (facts_module, "read_watermarks", watermarks),
        (transactions_module, "fetch_offsets", offsets),
        (transactions_module, "initialised", lambda _, transactional_id, **__: broker.init(transactional_id)),
        (transactions_module, "Clients", FakeClients),
    ]
    with pytest.MonkeyPatch.context() as patched:
        for module, name, instead in replaced:
            patched.setattr(module, name, instead)
        yield


class Events(RuleBasedStateMachine):
    """Events of one partition, in any order."""

    @initialize(skips=st.booleans(), in_lanes=st.booleans(), most=st.sampled_from([None, None, 4]))
    def begin(self, skips: bool, in_lanes: bool, most: int | None) -> None:
        self.broker = Broker()
        self.held: LastMaterialization | None = None
        self.runs: list[Generator[None]] = []
        self.refused: KpipeError | None = None
        self.names = 0
        relaxed = {"execution_mode": ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION, "max_in_flight_per_partition": 2}
        scaling = PartitionScaling(max_records=most, **(relaxed if in_lanes else {}))
        on_lost: Any = "skip" if skips else "error"
        self.source = KafkaSource(connection=CONNECTION, scaling=scaling, on_lost_offsets=on_lost)

    # The topic

    @rule(records=st.integers(1, 9), is_open=st.booleans())
    def produce(self, records: int, is_open: bool) -> None:
        self.broker.log_end += records
        if not is_open:
            self.broker.stable_end = self.broker.log_end

    @rule(what=st.sampled_from(["retain", "retain", "recreate", "forget", "expire"]), records=st.integers(1, 9))
    def lose(self, what: str, records: int) -> None:
        """One rule, so that it does not come more often than runs do."""
        broker = self.broker
        if what == "retain":
            broker.log_start = min(broker.log_start + records, broker.stable_end)
        elif what == "recreate" or (what == "forget" and self.held is not None):
            broker.incarnation += 1
            broker.log_start, broker.stable_end, broker.log_end = 0, records, records
            if what == "forget":
                # Brokers delete a group's offsets together with the topic. Where Dagster holds nothing either, nobody
                # knows of the former topic any more.
                broker.offset = None
        elif what == "expire" and self.held is not None and not self.runs:
            # After a week without a commit: no run takes that long.
            broker.offset = None

    # Runs

    @precondition(lambda self: len(self.runs) < 3)
    @rule(steps=st.integers(0, 3))
    def start(self, steps: int) -> None:
        self.names += 1
        run = self.take(f"run-{self.names}")
        self.runs.append(run)
        self.advance(run, steps, [])

    @rule(fates=FATES)
    def run_to_its_end(self, fates: list[Fate]) -> None:
        self.names += 1
        run = self.take(f"run-{self.names}")
        self.runs.append(run)
        self.advance(run, 100, fates)

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, 2), steps=st.sampled_from([1, 2, 3, 100]), fates=FATES)
    def step(self, which: int, steps: int, fates: list[Fate]) -> None:
        self.advance(self.runs[which % len(self.runs)], steps, fates)

    def advance(self, run: Generator[None], steps: int, fates: list[Fate]) -> None:
        self.broker.fates = list(fates)
        for _ in range(steps):
            try:
                with brokers(self.broker):
                    next(run)
            except KilledError:
                self.runs.remove(run)
                break
            except (StopIteration, KpipeError) as end:
                self.runs.remove(run)
                self.refused = end if isinstance(end, KpipeError) else None
                break
        self.broker.fates = []
        assert not self.broker.problems, self.broker.problems

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, 2))
    def kill(self, which: int) -> None:
        """The process is gone, and what it left open stays open until its id is taken over."""
        run = self.runs.pop(which % len(self.runs))
        with pytest.raises(KilledError), brokers(self.broker):
            run.throw(KilledError)

    @precondition(lambda self: isinstance(self.refused, LostRangeError | TopicRecreatedError))
    @rule()
    def obey(self) -> None:
        """An operator decides to begin at the log's start, as the refusal advises."""
        at, topic_id = self.broker.log_start, self.broker.topic_id
        self.broker.offset = CommittedOffset(at, CommitMetadata(topic_id, "cli", "s", "", at, SliceCounts()))
        self.broker.written[topic_id] = at
        self.refused = None

    def take(self, name: str) -> Generator[None]:
        clients: Any = FakeClients()
        slice_ = self.source.plan(
            GROUP, [PLACE], run_id=name, slice_id="s", earlier=lambda _: self.held, clients=clients
        )
        self.check_plan(slice_)
        yield
        settings = CONNECTION.settings
        lanes = split(slice_, 2) if self.source.policy(GROUP).lanes > 1 and slice_.span > 1 else (slice_,)
        done = 0
        failed: KpipeError | None = None
        try:
            for lane in lanes:
                yield from self.write(lanes, lane)
                done += 1
        except KpipeError as error:
            failed = error
            yield
            if isinstance(error, CommitUnknownError):
                # Where that fails too, the error says that nobody knows.
                with suppress(KpipeError):
                    if len(lanes) > 1:
                        done = lanes_read_back(settings, lanes)[0]
                    else:
                        done = int(read_back(settings, slice_, timeout_s=60) is not None)
        yield
        if done:
            end = lanes[done - 1].ranges[0].range.end
            assert end <= self.broker.furthest[slice_.ranges[0].topic_id], "reported, and not committed"
            self.held = LastMaterialization(end, slice_.ranges[0].topic_id, GROUP)
        if failed is not None and done < len(lanes):
            raise failed

    def write(self, lanes: tuple[Slice, ...], slice_: Slice) -> Generator[None]:
        settings = CONNECTION.settings
        kind: Callable[[], SliceTransaction] = lambda: SliceTransaction(settings, slice_, timeout_s=60)  # noqa: E731
        if len(lanes) > 1:
            kind = lambda: LaneTransaction(settings, lanes, slice_.lane, timeout_s=60)  # noqa: E731
        with kind() as transaction:
            transaction.open()
            yield
            if isinstance(transaction, LaneTransaction):
                assert transaction.await_turn().state == "mine"
            else:
                assert transaction.committed_earlier() is None
            yield
            transaction.begin()
            (planned,) = slice_.ranges
            if planned.topic_id == self.broker.topic_id and self.broker.log_start > planned.range.start:
                raise LostRangeError("deleted while it was read")
            transaction.producer.produce(slice_)  # type: ignore[arg-type]
            yield
            transaction.commit(ONE)
            yield

    def check_plan(self, slice_: Slice) -> None:
        """What a plan knows to be of another topic is refused, never planned."""
        (planned,) = slice_.ranges
        stored = self.broker.offset
        if stored is not None and stored.metadata is not None:
            assert stored.metadata.topic_id == planned.topic_id
        elif stored is None and self.held is not None:
            assert planned.resumed
            assert self.held.topic_id == planned.topic_id


def test_no_sequence_of_events_skips_or_repeats_a_record_without_a_word() -> None:
    run_state_machine_as_test(
        Events, settings=hypothesis_settings(max_examples=250, stateful_step_count=30, deadline=None)
    )
