"""The writer commits only when it has had every row: to a Python worker, a failed Spark task looks like the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from kpipe_platform.codecs import RawCodec
from kpipe_platform.errors import EngineUnavailableError
from kpipe_platform.kafka.admin.groups import committed_offsets
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.kafka.transactions.lanes import split
from kpipe_platform.kafka.transactions.slice import SliceTransaction
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.spark.sink.outcome_json import outcome_of_json
from kpipe_platform.spark.sink.spec import KIND_COUNT, KIND_END, Outcome, OutputTopic, WriterSpec
from kpipe_platform.spark.sink.task.lane import run_lane
from kpipe_platform.spark.sink.task.writer import run_writer
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory

pytestmark = pytest.mark.broker

GROUP = "kpipe.ended"
COUNT = json.dumps({"kind": KIND_COUNT, "src": 0, "records": 3}).encode()
END = json.dumps({"kind": KIND_END}).encode()
Batch = list[bytes | None]


def batch(values: Batch) -> pa.RecordBatch:
    """Values as outputs, and counts and ends as what they are."""
    asides = (COUNT, END)
    columns = {
        "key": [None] * len(values),
        "value": [None if value in asides else value for value in values],
        "note": [value if value in asides else None for value in values],
    }
    return pa.RecordBatch.from_pydict({name: pa.array(each, pa.binary()) for name, each in columns.items()})


@pytest.fixture
def spec(kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, produce: Produce) -> WriterSpec:
    source, target = kafka_topic("ended"), kafka_topic("ended-out")
    produce(source, [{"value": b"%d" % n} for n in range(3)])
    settings = ConnectionSettings(bootstrap_servers=kafka_broker.bootstrap_servers)
    planned = PlannedRange(OffsetRange(source, 0, 0, 3), "id", 0, 3, None)
    return WriterSpec(
        settings=settings,
        source_settings=settings,
        slice=Slice(f"{GROUP}.{source}", "run", "abc", (planned,)),
        mode="transactional",
        outputs=(OutputTopic(target, TopicLimits()),),
        dead_letters=(None,),
        policies=FaultPolicies(FaultAction.STOP),
        codecs=((RawCodec(), RawCodec()),),
        isolation="read_committed",
    )


def whole(spec: WriterSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return run_writer(spec, batches)


def one_lane(spec: WriterSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    lanes = [replace(spec, slice=lane) for lane in split(spec.slice, 1)]
    return run_lane(lanes, 0, batches)


Writer = Callable[[WriterSpec, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
both = pytest.mark.parametrize("writer", [whole, one_lane])


def written(writer: Writer, spec: WriterSpec, *batches: Batch) -> Outcome:
    (answer,) = writer(spec, iter([batch(each) for each in batches]))
    return outcome_of_json(answer.column("outcome")[0].as_py())


def committed(spec: WriterSpec) -> int | None:
    place = (spec.slice.ranges[0].range.topic, 0)
    with Clients(spec.settings) as clients:
        found = committed_offsets(clients, spec.slice.group, [place])[place]
    return None if found is None else found.offset


@both
def test_all_rows_and_the_end_are_committed(writer: Writer, spec: WriterSpec, consume: Consume) -> None:
    found = written(writer, spec, [COUNT, b"a"], [b"b", END])
    assert (found.status, found.total) == ("committed", SliceCounts(read=3, written=2))
    assert committed(spec) == 3
    assert [record.value for record in consume(spec.output(0).name)] == [b"a", b"b"]


@both
@pytest.mark.parametrize("batches", [([COUNT, b"a"], [b"b"]), ([COUNT],), ()], ids=["half", "counts", "nothing"])
def test_without_the_end_nothing_is_committed(
    writer: Writer, spec: WriterSpec, batches: tuple[Batch, ...], consume: Consume
) -> None:
    found = written(writer, spec, *batches)
    assert (found.status, type(found.error)) == ("error", EngineUnavailableError)
    assert "ended early" in str(found.error)
    assert committed(spec) is None
    assert consume(spec.output(0).name) == []


@both
def test_rows_after_the_end_are_not_committed(writer: Writer, spec: WriterSpec, consume: Consume) -> None:
    found = written(writer, spec, [COUNT, b"a", END], [b"b"])
    assert (found.status, type(found.error)) == ("error", EngineUnavailableError)
    assert committed(spec) is None
    assert consume(spec.output(0).name) == []


@pytest.mark.parametrize("after_input", [True, False])
def test_a_writer_whose_stage_fails_fences_nobody(spec: WriterSpec, after_input: bool) -> None:
    """Its task may have ended for Spark already, and the next one be at work under the same transactional id."""

    def fails() -> Iterator[pa.RecordBatch]:
        raise ValueError("the stage failed")
        yield

    with SliceTransaction(spec.settings, spec.slice, timeout_s=60) as other:
        other.open()
        before = other.producer
        with pytest.raises(ValueError, match="the stage failed"):
            list(run_writer(replace(spec, after_input=after_input), fails()))
        before.begin_transaction()
        before.produce(spec.output(0).name, b"of the other")
        if after_input:
            before.commit_transaction(30)
        else:
            with pytest.raises(Exception, match=r"FENCED|INVALID_PRODUCER_EPOCH"):
                before.commit_transaction(30)
