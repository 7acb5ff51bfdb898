"""Redrive as a Dagster job, executed in this process against a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from kpipe_platform import KafkaConnection
from kpipe_platform.errors import ConfigError, TopicNotFoundError
from kpipe_platform.jobs import RedriveConfig, redrive_job
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform_tests.metadata import plain_metadata

pytestmark = pytest.mark.broker


@pytest.fixture
def connection(kafka_broker: EmbeddedBroker) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def source(kafka_topic: TopicFactory) -> str:
    return kafka_topic("orders")


@pytest.fixture
def dlq(kafka_topic: TopicFactory, produce: Produce, source: str) -> str:
    topic = kafka_topic("orders.dlq")
    about = {"__connect.errors.topic": source, "__connect.errors.partition": "0"}
    produce(
        topic,
        [
            {"key": b"\xff", "value": b"bad", "headers": {**about, "__connect.errors.exception.class.name": "a.Boom"}},
            {"key": b"k", "value": b"other", "headers": {**about, "__connect.errors.exception.class.name": "a.Other"}},
            {"value": b"plain"},
        ],
    )
    return topic


def config(topic: str, **values: object) -> dg.RunConfig:
    return dg.RunConfig(ops={"redrive": RedriveConfig(topic=topic, **values)})  # type: ignore[arg-type]


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    (event,) = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT"]
    return plain_metadata(event.step_output_data.metadata)


def test_a_run_redrives_and_the_next_one_has_nothing_left(
    connection: KafkaConnection, instance: dg.DagsterInstance, dlq: str, source: str, consume: Consume
) -> None:
    job = redrive_job(connection)
    result = job.execute_in_process(run_config=config(dlq), instance=instance)
    found = metadata(result)
    assert (found["records_sent"], found["records_kept"], found["consumer_group"]) == (2, 1, f"{dlq}.redrive")
    assert found["sent_to"] == {source: 2}
    assert found["kept_by_reason"] == {"no_topic": 1}
    assert result.output_for_node("redrive")["kept_dead_letters"][0]["offset"] == 2
    sent = [(each.key, each.value, each.headers) for each in consume(source)]
    assert sent == [
        (b"\xff", b"bad", (("kpipe.redrive.attempts", b"1"),)),
        (b"k", b"other", (("kpipe.redrive.attempts", b"1"),)),
    ]
    again = metadata(job.execute_in_process(run_config=config(dlq), instance=instance))
    assert (again["records_sent"], again["records_kept"], again["records_read"]) == (0, 1, 1)
    assert len(consume(source)) == 2


def test_options_are_those_of_the_command(
    connection: KafkaConnection, instance: dg.DagsterInstance, dlq: str, source: str, consume: Consume
) -> None:
    job = redrive_job(connection)
    dry = job.execute_in_process(run_config=config(dlq, exceptions=["Boom"], dry_run=True), instance=instance)
    assert (metadata(dry)["records_sent"], metadata(dry)["records_left_out"], consume(source)) == (1, 2, [])
    part = job.execute_in_process(run_config=config(dlq, exceptions=["Boom"]), instance=instance)
    assert metadata(part)["records_sent"] == 1
    rest = job.execute_in_process(run_config=config(dlq, topics=[source], at=["0@1"], limit=1), instance=instance)
    assert (metadata(rest)["records_sent"], metadata(rest)["limited"]) == (1, True)
    assert [each.value for each in consume(source)] == [b"bad", b"other"]


def test_every_option_of_the_engine_is_in_the_config() -> None:
    wanted = RedriveConfig(
        topic="a.dlq",
        topics=["a"],
        partitions=[1],
        since="2026-01-01",
        until="2026-02-01",
        exceptions=["E"],
        rules=["r"],
        assets=["s"],
        at=["0@1"],
        dry_run=True,
        limit=2,
        max_records_per_s=3.5,
        to_topic="b",
        partitioning="by_key",
        max_attempts=4,
        parking_topic="p",
        create_parking_topic=True,
        redacted="as_is",
        start="error",
        batch_records=5,
        dead_letter_partitions=[6],
        group="g",
    ).options()
    from kpipe_platform.dead_letters.redrive.options import RedriveOptions

    default = RedriveOptions("x.dlq")
    same = [name for name in RedriveOptions.__slots__ if getattr(wanted, name) == getattr(default, name)]
    # The one setting that is the engine's own.
    assert same == ["transaction_timeout_s"]
    assert [name for name in wanted.filter.__slots__ if getattr(wanted.filter, name) in ((), None)] == []


def test_the_connection_may_come_from_the_definitions(
    connection: KafkaConnection, instance: dg.DagsterInstance, dlq: str, source: str, consume: Consume
) -> None:
    job = redrive_job(name="nightly", default=RedriveConfig(topic=dlq))
    definitions = dg.Definitions(jobs=[job], resources={"kafka_connection": connection})
    dg.Definitions.validate_loadable(definitions)
    result = definitions.resolve_job_def("nightly").execute_in_process(instance=instance)
    assert metadata(result)["records_sent"] == 2


def test_a_failed_run_raises_kpipes_own_error(
    connection: KafkaConnection, instance: dg.DagsterInstance, dlq: str
) -> None:
    job = redrive_job(connection)
    with pytest.raises(TopicNotFoundError, match="no-such"):
        job.execute_in_process(run_config=config("no-such.dlq"), instance=instance)
    with pytest.raises(ConfigError, match="forever"):
        job.execute_in_process(run_config=config(dlq, to_topic=dlq), instance=instance)
