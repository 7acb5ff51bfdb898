"""Which part of the pipeline a write that was not acknowledged belongs to, and how a batch is taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from kpipe_platform.codecs import RawCodec
from kpipe_platform.dead_letters import DeadLetterContext
from kpipe_platform.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeadLetterError,
    DeliveryError,
    KpipeError,
    TransientError,
)
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.client.calls import REFUSED_CODES
from kpipe_platform.kafka.client.producer import AckedProducer
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.kafka.transactions.lanes import split
from kpipe_platform.kafka.transactions.slice import SliceTransaction
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.spark.sink.outcome_json import outcome_of_json
from kpipe_platform.spark.sink.spec import KIND_FAULT, NO_OUTPUT, OutputTopic, WriterSpec
from kpipe_platform.spark.sink.task.lane import run_lane
from kpipe_platform.spark.sink.task.refused import find_refused
from kpipe_platform.spark.sink.task.writer import ControlRow, WriterTask, run_writer, split_batch


@pytest.fixture
def task() -> WriterTask:
    settings = ConnectionSettings(bootstrap_servers="127.0.0.1:9")
    planned = PlannedRange(OffsetRange("orders", 0, 0, 5), "id", 0, 5, None)
    spec = WriterSpec(
        settings=settings,
        source_settings=settings,
        slice=Slice("kpipe.enriched", "run", "abc", (planned,)),
        mode="parallel",
        outputs=(OutputTopic("enriched", TopicLimits()),),
        dead_letters=(DeadLetterContext("orders.dlq", asset="enriched", run_id="run", group="kpipe.enriched"),),
        policies=FaultPolicies(FaultAction.DEAD_LETTER),
        codecs=((RawCodec(), RawCodec()),),
        isolation="read_committed",
    )
    return WriterTask(spec)


def failed(code: int, *topics: str) -> AckedProducer:
    sink = AckedProducer(cast(Any, None))
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
    assert caught.value.part == part


def test_a_refused_output_is_looked_for_and_a_refused_dead_letter_stops_the_run(task: WriterTask) -> None:
    assert task.given_up(failed(KafkaError.INVALID_RECORD, "enriched"), None).status == "broker_rejected"
    with pytest.raises(DeadLetterError, match=r"orders\.dlq"):
        task.given_up(failed(KafkaError.INVALID_RECORD, "orders.dlq"), None)


def transactionally(spec: WriterSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return run_writer(replace(spec, mode="transactional"), batches)


def idempotently(spec: WriterSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return run_writer(replace(spec, mode="parallel"), batches)


def probing(spec: WriterSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return run_writer(replace(spec, mode="find_refused"), batches)


def in_lanes(spec: WriterSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    lanes = [replace(spec, mode="transactional", slice=lane) for lane in split(spec.slice, 2)]
    return run_lane(lanes, 0, batches)


Write = Callable[[WriterSpec, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def error_of(answers: Iterator[pa.RecordBatch]) -> KpipeError:
    (answer,) = answers
    found = outcome_of_json(answer.column("outcome")[0].as_py())
    assert found.status == "error"
    assert found.error is not None
    return found.error


@pytest.mark.parametrize("write", [transactionally, idempotently, probing, in_lanes])
@pytest.mark.parametrize(
    ("settings", "producer", "says"),
    [
        # Declared where there is such a file, and run on an executor where there is none.
        (ConnectionSettings("b:9092", security_protocol="SSL", ssl_ca_pem="/no/such/ca.pem"), {}, "ssl_ca_pem"),
        (ConnectionSettings("b:9092"), {"compression.level": "best"}, "compression.level"),
    ],
)
def test_settings_that_only_the_executors_client_refuses(
    task: WriterTask, write: Write, settings: ConnectionSettings, producer: dict[str, str], says: str
) -> None:
    found = error_of(write(replace(task.spec, settings=settings, producer=producer), iter(())))
    assert type(found) is ConfigError
    assert says in found.message


@pytest.mark.parametrize("write", [transactionally, in_lanes])
def test_what_kafkas_client_raises_anywhere_is_no_failure_of_the_stage(
    task: WriterTask, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(SliceTransaction, "open", away)
    assert type(error_of(write(task.spec, iter(())))) is BrokerUnavailableError


class Away:
    """A producer whose brokers went away before one of the calls of a probe."""

    def __init__(self, before: str) -> None:
        self.before = before
        self.waiting = 0

    def _reach(self, call: str) -> None:
        if call == self.before:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def begin_transaction(self) -> None:
        self._reach("begin")

    def produce(self, *_: object) -> None:
        self.waiting += 1

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        if self.before != "flush":
            self.waiting = 0
        return self.waiting

    def __len__(self) -> int:
        return self.waiting

    def abort_transaction(self, _: float) -> None:
        self._reach("abort")


@pytest.mark.parametrize(
    ("before", "kind"),
    [("begin", BrokerUnavailableError), ("flush", DeliveryError), ("abort", BrokerUnavailableError)],
)
def test_an_outage_while_refused_records_are_looked_for(task: WriterTask, before: str, kind: type[KpipeError]) -> None:
    row = cast(Any, SimpleNamespace(message=(None, b"value", -1, 0, [])))
    spec = replace(task.spec, delivery_timeout_s=0.1)
    with pytest.raises(kind) as caught:
        find_refused(cast(Any, Away(before)), spec, "enriched", [row], REFUSED_CODES)
    assert isinstance(caught.value, TransientError)


def test_a_batch_of_outputs_alone_is_not_copied() -> None:
    none = pa.array([None] * 3, pa.binary())
    one = pa.RecordBatch.from_pydict({"key": none, "value": none, "note": none, "n": [1, 2, 3]})
    assert split_batch(one) == (one, None, [])
    assert split_batch(one).outputs is one
    mixed = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k", None, None], pa.binary()),
            "value": pa.array([b"v", b"w", None], pa.binary()),
            "note": pa.array([b'{"kind":1,"src":0}', None, NO_OUTPUT], pa.binary()),
            "n": [1, 2, 3],
        }
    )
    outputs, without, others = split_batch(mixed)
    assert outputs.column("value").to_pylist() == [b"w"]
    assert without is not None
    assert without.column("n").to_pylist() == [3]
    assert others == [ControlRow({"kind": KIND_FAULT, "src": 0}, b"k", b"v")]
    assert split_batch(one.slice(0, 0)).others == []
