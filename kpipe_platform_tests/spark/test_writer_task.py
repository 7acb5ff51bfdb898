"""Which part of the pipeline a write that was not acknowledged belongs to, and how a batch is taken apart."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from kpipe_platform.codecs import RawCodec
from kpipe_platform.deadletter import DeadLetterContext
from kpipe_platform.errors import DeadLetterError, KpipeError
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.settings import ConnectionSettings
from kpipe_platform.kafka.slices import PlannedRange, Slice
from kpipe_platform.kafka.topics import TopicLimits
from kpipe_platform.policies.components import FaultPolicies
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.spark.sink import Sink
from kpipe_platform.spark.writer_spec import KIND_FAULT, NO_OUTPUT, WriterSpec
from kpipe_platform.spark.writer_task import Aside, WriterTask, parted


@pytest.fixture
def task() -> WriterTask:
    settings = ConnectionSettings(bootstrap_servers="127.0.0.1:9")
    planned = PlannedRange(OffsetRange("orders", 0, 0, 5), "id", 0, 5, None)
    spec = WriterSpec(
        settings=settings,
        source_settings=settings,
        slice=Slice("kpipe.enriched", "run", "abc", (planned,)),
        mode="idempotent",
        topic="enriched",
        limits=TopicLimits(),
        dead_letters=(DeadLetterContext("orders.dlq", asset="enriched", run_id="run", group="kpipe.enriched"),),
        policies=FaultPolicies(FaultAction.DEAD_LETTER),
        codecs=((RawCodec(), RawCodec()),),
        isolation="read_committed",
    )
    return WriterTask(spec)


def failed(code: int, *topics: str) -> Sink:
    sink = Sink(cast(Any, None))
    sink.failures = [KafkaError(code)]
    sink.failed_topics = set(topics)
    return sink


@pytest.mark.parametrize(
    ("topics", "part"),
    [(("enriched",), "destination"), (("orders.dlq",), "dead_letter"), (("enriched", "orders.dlq"), "destination")],
)
def test_the_part_whose_retry_applies(task: WriterTask, topics: tuple[str, ...], part: str) -> None:
    with pytest.raises(KpipeError) as caught:
        task.given_up(failed(KafkaError._MSG_TIMED_OUT, *topics), None)
    assert caught.value.attributes["part"] == part


def test_a_refused_output_is_looked_for_and_a_refused_dead_letter_stops_the_run(task: WriterTask) -> None:
    assert task.given_up(failed(KafkaError.INVALID_RECORD, "enriched"), None).status == "broker_rejected"
    with pytest.raises(DeadLetterError, match=r"orders\.dlq"):
        task.given_up(failed(KafkaError.INVALID_RECORD, "orders.dlq"), None)


def test_a_batch_of_outputs_alone_is_not_copied() -> None:
    none = pa.array([None] * 3, pa.binary())
    one = pa.RecordBatch.from_pydict({"key": none, "value": none, "note": none, "n": [1, 2, 3]})
    assert parted(one) == (one, None, [])
    assert parted(one).outputs is one
    mixed = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k", None, None], pa.binary()),
            "value": pa.array([b"v", b"w", None], pa.binary()),
            "note": pa.array([b'{"kind":1,"src":0}', None, NO_OUTPUT], pa.binary()),
            "n": [1, 2, 3],
        }
    )
    outputs, without, others = parted(mixed)
    assert outputs.column("value").to_pylist() == [b"w"]
    assert without is not None
    assert without.column("n").to_pylist() == [3]
    assert others == [Aside({"kind": KIND_FAULT, "src": 0}, b"k", b"v")]
    assert parted(one.slice(0, 0)).others == []
