"""`kpipe topics`, `kpipe offsets` and `kpipe transactions` against a real broker."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

from kpipe_platform.cli import connection
from kpipe_platform.cli.connection import connection_settings
from kpipe_platform.cli.main import app
from kpipe_platform.cli.offsets import RUN_ID
from kpipe_platform.errors import (
    ConfigError,
    FencedError,
    KpipeError,
    LostRangeError,
    NoStartOffsetError,
    OffsetsPendingError,
    OffsetsVanishedError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from kpipe_platform.kafka.admin.groups import CommittedOffset, committed_offsets
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.kafka.transactions.slice import SliceTransaction, store_offsets
from kpipe_platform.slices.plan.facts import gather_facts
from kpipe_platform.slices.plan.ranges import LastMaterialization, PlanPolicy, plan_slice
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory
from kpipe_platform.testing.topics import create_topic, delete_topic

pytestmark = pytest.mark.broker

Kpipe = Callable[..., Result]


@pytest.fixture
def kpipe(kafka_broker: EmbeddedBroker) -> Kpipe:
    """Runs a command in this process, as its arguments or as one line."""
    runner = CliRunner()

    def run(*arguments: str, answer: str | None = None, **environment: str) -> Result:
        words = shlex.split(arguments[0]) if len(arguments) == 1 else list(arguments)
        variables = {"KAFKA_BOOTSTRAP_SERVERS": kafka_broker.bootstrap_servers, **environment}
        return runner.invoke(app, words, input=answer, env=variables)

    return run


@pytest.fixture
def clients(kafka_broker: EmbeddedBroker) -> Iterator[Clients]:
    with Clients(ConnectionSettings(kafka_broker.bootstrap_servers)) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"cli-{uuid.uuid4().hex[:8]}.orders"


def plan(
    clients: Clients, group: str, topic: str, *numbers: int, earlier: LastMaterialization | None = None, **how: Any
) -> Slice:
    policy = PlanPolicy(group, **how)
    facts = gather_facts(clients, policy, [(topic, n) for n in numbers or (0,)], lambda _: earlier)
    return plan_slice(facts, policy, run_id="run-1", slice_id=uuid.uuid4().hex)


def commit(clients: Clients, slice_: Slice, *counts: SliceCounts) -> None:
    with SliceTransaction(clients.settings, slice_, timeout_s=30) as transaction:
        transaction.open()
        store_offsets(transaction, counts or [SliceCounts() for _ in slice_.ranges])


def committed(clients: Clients, group: str, topic: str, number: int = 0) -> CommittedOffset | None:
    return committed_offsets(clients, group, [(topic, number)])[(topic, number)]


def offset_of(clients: Clients, group: str, topic: str, number: int = 0) -> int | None:
    found = committed(clients, group, topic, number)
    return None if found is None else found.offset


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), "a traceback instead of a message"
    for part in parts:
        assert part in result.stderr


# ------------------------------------------------------------------------------------------- connection


def test_security_comes_by_the_environment(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("certificates")
    settings = connection_settings(
        "broker:9093",
        {
            "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
            "KAFKA_SASL_USERNAME": "ops",
            "KAFKA_SASL_PASSWORD": "hush",
            "KAFKA_SSL_CA_PEM": str(ca),
            "KAFKA_SSL_KEY_PEM": "",
        },
    )
    rendered = settings.for_librdkafka()
    assert rendered["sasl.mechanism"] == "SCRAM-SHA-512"
    assert rendered["sasl.password"] == "hush"
    assert rendered["ssl.ca.location"] == str(ca)
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("servers", "environment", "fix"),
    [
        ("broker", {}, "--bootstrap-servers"),
        ("b:1", {"KAFKA_SECURITY_PROTOCOL": "TLS"}, "KAFKA_SECURITY_PROTOCOL"),
        ("b:1", {"KAFKA_SASL_USERNAME": "ops"}, "KAFKA_SASL_USERNAME"),
        ("b:1", {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_SASL_MECHANISM": "PLAIN"}, "KAFKA_SASL_USERNAME"),
    ],
)
def test_a_wrong_setting_is_named_as_a_person_sets_it(servers: str, environment: dict[str, str], fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connection_settings(servers, environment)
    assert fix in (caught.value.fix or "")


def test_help_needs_neither_dagster_nor_pyspark() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from kpipe_platform.cli.main import app\n"
        "for words in (['offsets', 'set', '--help'], ['topics', 'create', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "import kpipe_platform.cli.connection\n"
        "kpipe_platform.cli.connection.open_clients('127.0.0.1:1').close()\n"
        "sys.exit(', '.join(sorted({'dagster', 'pyspark'} & set(sys.modules))) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_brokers_that_are_away_are_an_error_and_no_traceback(kpipe: Kpipe, monkeypatch: pytest.MonkeyPatch) -> None:
    # A person waits for them for 10 s.
    impatient = replace(connection_settings("127.0.0.1:1"), request_timeout_s=1)
    monkeypatch.setattr(connection, "connection_settings", lambda _: impatient)
    refused(
        kpipe("topics", "list", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1"),
        "127.0.0.1:1",
        "check that the brokers are running",
    )


# ----------------------------------------------------------------------------------------------- topics


def test_a_topic_is_created_as_asked_and_described(kpipe: Kpipe) -> None:
    name = f"made-{uuid.uuid4().hex[:8]}"

    created = succeeded(
        kpipe("topics", "create", name, "--partitions", "3", "--config", "retention.ms=-1", "--replication-factor", "1")
    )
    assert created.stdout == f"{name}\n"

    found = json.loads(succeeded(kpipe("topics", "describe", name, "--json")).stdout)
    assert found["topic_id"] in created.stderr
    assert found["config"]["retention.ms"] == "-1"
    assert [p["partition"] for p in found["partitions"]] == [0, 1, 2]
    assert found["partitions"][0] == {
        "partition": 0,
        "leader": 0,
        "replicas": [0],
        "in_sync": [0],
        "log_start": 0,
        "end": 0,
        "held_by_open_transactions": 0,
    }
    table = succeeded(kpipe("topics", "describe", name)).stdout
    assert re.search(r"^partition +leader +replicas +in sync +log start +end +open$", table, re.MULTILINE)
    assert "retention.ms=-1" in table


def test_topics_are_listed_without_kafkas_own(kpipe: Kpipe, kafka_topic: TopicFactory, clients: Clients) -> None:
    name = kafka_topic("listed", partitions=2)
    commit(clients, plan(clients, "cli-list.orders", name))  # so that there are internal topics

    assert {"name": name, "partitions": 2} in json.loads(succeeded(kpipe("topics", "list", "--json")).stdout)
    assert re.search(rf"^{name} +2$", succeeded(kpipe("topics", "list")).stdout, re.MULTILINE)
    assert "__consumer_offsets" not in kpipe("topics", "list").stdout
    assert "__consumer_offsets" in kpipe("topics", "list", "--internal").stdout


def test_a_topic_that_exists_is_no_silent_success(kpipe: Kpipe, kafka_topic: TopicFactory) -> None:
    name = kafka_topic("there", partitions=2)

    refused(kpipe("topics", "create", name, "--partitions", "5"), "already exists", "--if-not-exists")
    again = succeeded(kpipe("topics", "create", name, "--partitions", "5", "--if-not-exists"))
    assert "2 partition(s)" in again.stderr
    assert len(json.loads(kpipe("topics", "describe", name, "--json").stdout)["partitions"]) == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["topics", "create", "new", "--config", "retention.ms"], "--config retention.ms=-1"),
        (["topics", "create", "new", "--config", "no.such.setting=1"], "no.such.setting"),
        (["topics", "create", "new", "--replication-factor", "3"], "eplication factor"),
        (["topics", "create", "not/a/name"], "not/a/name"),
        (["topics", "describe", "nowhere"], "kpipe topics create nowhere --partitions N"),
        (["offsets", "show", "g", "nowhere"], "kpipe topics create nowhere --partitions N"),
    ],
)
def test_what_cannot_be_is_said_in_words(kpipe: Kpipe, arguments: list[str], part: str) -> None:
    refused(kpipe(*arguments), part)


def test_the_advice_for_a_missing_topic_helps(kpipe: Kpipe, clients: Clients, group: str) -> None:
    name = f"late-{uuid.uuid4().hex[:8]}"
    with pytest.raises(TopicNotFoundError) as caught:
        plan(clients, group, name)

    command = re.search(r"kpipe (topics create \S+ --partitions) N", str(caught.value))
    assert command is not None
    succeeded(kpipe(f"{command[1]} 2"))
    assert plan(clients, group, name).is_empty


# --------------------------------------------------------------------------------------------- offsets: show


@pytest.mark.parametrize("command", ["offsets show {} {}", "offsets set {} {} --to latest --yes"])
def test_a_mistyped_group_is_refused_and_the_readers_are_named(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str, command: str
) -> None:
    topic, other = kafka_topic(partitions=2), kafka_topic("other")
    produce(topic, [b"x"] * 3)
    wrong = group.replace("orders", "ordres")
    refused(kpipe(command.format(wrong, topic)), f"{wrong!r} has no committed offset", "no visible group has one")
    commit(clients, plan(clients, group, topic, 1))
    commit(clients, plan(clients, wrong, other))

    # A group that reads another topic does not read this one.
    refused(kpipe(command.format(wrong, topic)), f"groups that have one: {group}\n", "correct the group", "--new-group")

    assert offset_of(clients, wrong, topic) is None
    succeeded(kpipe(command.format(group, topic)))


def test_a_new_group_is_given_its_first_offset_where_that_is_said(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str
) -> None:
    topic = kafka_topic(partitions=2)
    produce(topic, [{"value": b"x", "partition": 0}] * 3)
    succeeded(kpipe(f"offsets set {group} {topic} --to latest --partition 0 --new-group --yes"))
    assert (offset_of(clients, group, topic), offset_of(clients, group, topic, 1)) == (3, None)
    # From then on it is known, in its other partitions too.
    succeeded(kpipe(f"offsets set {group} {topic} --to latest --partition 1 --yes"))
    assert offset_of(clients, group, topic, 1) == 0


def test_a_partition_that_the_group_has_not_read(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str
) -> None:
    topic = kafka_topic(partitions=3)
    produce(topic, [{"value": b"x", "partition": 0}] * 3)
    commit(clients, plan(clients, group, topic, 2))

    found = json.loads(succeeded(kpipe("offsets", "show", group, topic, "--json")).stdout)

    assert [(p["committed"], p["lag"], p["run_id"]) for p in found["partitions"]] == [
        (None, 3, None),
        (None, 0, None),
        (0, 0, "run-1"),
    ]
    assert re.search(r"^ +0 +0 +- +3 +3 +- +- ", kpipe("offsets", "show", group, topic).stdout, re.MULTILINE)


def test_what_a_run_committed(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 10)
    slice_ = plan(clients, group, topic, max_records=6)
    commit(clients, slice_, SliceCounts(read=6, written=4, dead_lettered=2))

    found = json.loads(succeeded(kpipe("offsets", "show", group, topic, "--json")).stdout)

    assert found["topic_id"] == slice_.ranges[0].topic_id
    assert found["members"] == []
    assert found["partitions"] == [
        {
            "partition": 0,
            "log_start": 0,
            "committed": 6,
            "end": 10,
            "lag": 4,
            "held_by_open_transactions": 0,
            "topic_id_matches": True,
            "run_id": "run-1",
            "slice_id": slice_.slice_id,
            "slice_start": 0,
            "transactional_id": f"{group}/{topic}/0",
            "counts": {"read": 6, "written": 4, "dead_lettered": 2, "skipped": 0},
        }
    ]
    table = kpipe("offsets", "show", group, topic).stdout.splitlines()
    assert re.split(r"\s{2,}", table[0]) == [
        *("partition", "log start", "committed", "end", "lag", "topic id", "run"),
        *("read", "written", "dead letters", "skipped"),
    ]
    assert table[1].split() == ["0", "0", "6", "10", "4", "same", "run-1", "6", "4", "2", "0"]


def test_an_open_transaction_of_the_producer_is_pointed_out(
    kpipe: Kpipe, kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, clients: Clients, group: str
) -> None:
    topic = kafka_topic()
    commit(clients, plan(clients, group, topic))
    producer = hung_producer(kafka_broker, topic, transactional_id := f"hung-{uuid.uuid4().hex[:8]}")

    found = json.loads(kpipe("topics", "describe", topic, "--json").stdout)["partitions"][0]
    assert (found["end"], found["held_by_open_transactions"]) == (0, 2)
    assert "open transactions" in kpipe("offsets", "show", group, topic).stderr

    declined = kpipe("transactions", "abort", transactional_id, answer="n\n")
    assert (declined.exit_code, "Aborted" in declined.stderr) == (1, True)
    succeeded(kpipe("transactions", "abort", transactional_id, "--yes"))

    found = json.loads(kpipe("topics", "describe", topic, "--json").stdout)["partitions"][0]
    assert (found["end"], found["held_by_open_transactions"]) == (3, 0)
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(10)


def test_a_commit_that_was_cut_off_is_ended(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 10)
    killed = SliceTransaction(clients.settings, plan(clients, group, topic), timeout_s=300)
    killed.open()
    killed.begin()
    membership = clients.consumer(group).consumer_group_metadata()
    killed.producer.send_offsets_to_transaction([TopicPartition(topic, 0, 10)], membership, 10)
    impatient = Clients(ConnectionSettings(clients.settings.bootstrap_servers, request_timeout_s=1))
    with impatient, pytest.raises(OffsetsPendingError, match="open transaction"):
        plan(impatient, group, topic)

    succeeded(kpipe("transactions", "abort", f"{group}/{topic}/0", "--yes"))

    commit(clients, plan(clients, group, topic))
    assert offset_of(clients, group, topic) == 10
    killed.close()


def hung_producer(broker: EmbeddedBroker, topic: str, transactional_id: str) -> Producer:
    """A producer with two records in a transaction that it does not end."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    for _ in range(2):
        producer.produce(topic, b"x")
    assert producer.flush(10) == 0
    return producer


# ---------------------------------------------------------------------------------------------- offsets: set


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("earliest", [0, 0]),
        ("latest", [5, 0]),
        ("0", [0, 0]),
        ("2013-01-01T00:00:00.003Z", [3, 0]),
        ("2013-01-01T00:00:00.003", [3, 0]),
        ("1999-12-31", [0, 0]),
        ("2099-12-31", [5, 0]),
    ],
)
def test_places(
    kpipe: Kpipe,
    kafka_topic: TopicFactory,
    produce: Produce,
    clients: Clients,
    group: str,
    to: str,
    after: list[int],
) -> None:
    topic = kafka_topic(partitions=2, config={"retention.ms": "-1"})
    new_year_ms = 1_356_998_400_000
    produce(topic, [{"value": b"x", "partition": 0, "timestamp": new_year_ms + n} for n in range(5)])

    moved = succeeded(kpipe("offsets", "set", group, topic, "--to", to, "--yes", "--new-group"))

    assert [offset_of(clients, group, topic, n) for n in (0, 1)] == after
    assert [line.split() for line in moved.stdout.splitlines()[1:]] == [
        ["0", "0", "5", "-", str(after[0])],
        ["1", "0", "0", "-", str(after[1])],
    ]


def test_only_the_partitions_that_were_named_move(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str
) -> None:
    topic = kafka_topic(partitions=3)
    produce(topic, [{"value": b"x", "partition": n % 3} for n in range(6)])
    commit(clients, plan(clients, group, topic, 0, 1, 2))

    succeeded(kpipe(f"offsets set {group} {topic} --partition 2 --partition 0 --to 1 --yes"))

    assert [offset_of(clients, group, topic, n) for n in range(3)] == [1, 2, 1]
    found = committed(clients, group, topic, 2)
    assert found is not None
    assert found.metadata is not None
    assert found.metadata.topic_id == describe_topics(clients, [topic])[topic].topic_id
    assert (found.metadata.run_id, found.metadata.counts) == (RUN_ID, SliceCounts())


def test_it_asks_first(kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 3)

    for declined in (kpipe(f"offsets set {group} {topic} --to 2 --new-group", answer=a) for a in ("n\n", "")):
        assert declined.exit_code == 1
        assert offset_of(clients, group, topic) is None
    agreed = succeeded(kpipe(f"offsets set {group} {topic} --to 2 --new-group", answer="y\n"))
    assert offset_of(clients, group, topic) == 2
    assert "Move the offsets" not in agreed.stdout, "the question is not data"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("--to 6", ["has no offset 6", "ends at 5", "--to latest"]),
        ("--to 1", ["offset 1", "was deleted", "starts at 2", "--to earliest"]),
        ("--to error", ["'error'", "earliest, latest, an offset, or a time"]),
        ("--to yesterday", ["'yesterday'", "earliest, latest, an offset, or a time"]),
        ("--to -3", ["'-3'"]),
        ("--to 20260131", ["has no offset 20260131"]),
        ("--to 20260131T000000Z", ["(milliseconds, 13 digits)"]),
        ("--to 3 --partition 4", ["has no partition 4"]),
    ],
)
def test_places_that_do_not_exist(
    kpipe: Kpipe,
    kafka_topic: TopicFactory,
    produce: Produce,
    clients: Clients,
    group: str,
    arguments: str,
    parts: list[str],
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 5)
    delete_records(clients, topic, 2)

    refused(kpipe(f"offsets set {group} {topic} {arguments} --yes --new-group"), *parts)
    assert offset_of(clients, group, topic) is None


def test_a_group_with_members_is_left_alone(
    kpipe: Kpipe, kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, produce: Produce, group: str
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"])
    rival = Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "group.id": group,
            "client.id": "rival",
            "auto.offset.reset": "earliest",
        }
    )
    rival.subscribe([topic])
    try:
        assert rival.poll(30) is not None

        refused(kpipe(f"offsets set {group} {topic} --to latest --yes"), "in use by 1 other consumer", "rival")
        assert "rival" in kpipe("offsets", "show", group, topic).stderr
    finally:
        rival.close()


def test_a_run_in_flight_cannot_commit_over_the_move(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str
) -> None:
    topic = kafka_topic(partitions=2)
    produce(topic, [{"value": b"x", "partition": 0}] * 10)
    commit(clients, plan(clients, group, topic, 0, max_records=4))
    with SliceTransaction(clients.settings, plan(clients, group, topic, 0), timeout_s=60) as run:
        run.open()
        assert run.committed_earlier() is None
        run.begin()
        run.producer.produce(topic, b"output", partition=1)
        run.producer.flush(10)

        succeeded(kpipe(f"offsets set {group} {topic} --to 2 --partition 0 --yes"))

        with pytest.raises(FencedError):
            run.commit([SliceCounts(read=6)])
    assert offset_of(clients, group, topic) == 2
    assert plan(clients, group, topic, 1).is_empty is False, "the aborted output leaves its offset and a marker"


def test_an_offset_that_moved_meanwhile_is_not_moved_again(
    kpipe: Kpipe,
    kafka_topic: TopicFactory,
    produce: Produce,
    clients: Clients,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 10)

    def meanwhile(*_: object, **__: object) -> bool:
        commit(clients, plan(clients, group, topic))
        return True

    monkeypatch.setattr("typer.confirm", meanwhile)
    found = kpipe(f"offsets set {group} {topic} --to 2 --new-group")
    refused(found, "no offset", "is now at offset 10, stored by run run-1")
    assert offset_of(clients, group, topic) == 10


# ---------------------------------------------------------------------- the remedies that refusals name


def delete_records(clients: Clients, topic: str, before: int) -> None:
    admin: AdminClient = clients.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(10)


def obey(kpipe: Kpipe, error: KpipeError) -> None:
    """Run the very command that the error advises."""
    command = re.search(r"kpipe (offsets set \S+ \S+ --partition \d+ --to [^\s;]+(?: --new-group)?)", str(error))
    assert command is not None, str(error)
    succeeded(kpipe(f"{command[1]} --yes"))


def test_lost_range(kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 100)
    commit(clients, plan(clients, group, topic, max_records=10))
    delete_records(clients, topic, 50)
    with pytest.raises(LostRangeError) as caught:
        plan(clients, group, topic)

    assert "offsets 10 to 49 were deleted" in kpipe("offsets", "show", group, topic).stderr
    obey(kpipe, caught.value)

    after = plan(clients, group, topic)
    assert (after.ranges[0].range.start, after.ranges[0].range.end) == (50, 100)
    commit(clients, after)
    assert offset_of(clients, group, topic) == 100


def test_offsets_vanished(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 100)
    with pytest.raises(OffsetsVanishedError) as caught:
        plan(clients, group, topic, earlier=LastMaterialization(77, describe_topics(clients, [topic])[topic].topic_id))

    obey(kpipe, caught.value)

    left = LastMaterialization(77, describe_topics(clients, [topic])[topic].topic_id)
    after = plan(clients, group, topic, earlier=left)
    assert (after.ranges[0].range.start, after.ranges[0].range.end) == (77, 100)
    commit(clients, after)


@pytest.mark.parametrize("stored", ["another topic", "past the end"])
def test_topic_recreated(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str, stored: str
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 10)
    topic_id = describe_topics(clients, [topic])[topic].topic_id
    old = CommitMetadata(
        "an-older-id" if stored == "another topic" else topic_id, "run-0", "s", f"{group}.{topic}.0", 0, SliceCounts()
    )
    offset = 4 if stored == "another topic" else 400
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset, metadata=old.to_text())])
    clients.admin().alter_consumer_group_offsets([moved])[group].result(10)
    with pytest.raises(TopicRecreatedError) as caught:
        plan(clients, group, topic)

    assert ("OTHER" in kpipe("offsets", "show", group, topic).stdout) is (stored == "another topic")
    obey(kpipe, caught.value)

    after = plan(clients, group, topic)
    assert (after.ranges[0].range.start, after.ranges[0].range.end) == (0, 10)
    commit(clients, after)
    assert "same" in kpipe("offsets", "show", group, topic).stdout


def test_topic_really_recreated(
    kpipe: Kpipe,
    kafka_broker: EmbeddedBroker,
    kafka_topic: TopicFactory,
    produce: Produce,
    clients: Clients,
    group: str,
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 10)
    commit(clients, plan(clients, group, topic, max_records=7))
    held = LastMaterialization(7, describe_topics(clients, [topic])[topic].topic_id)
    # The brokers delete the group's offset together with the topic.
    delete_topic(kafka_broker.bootstrap_servers, topic)
    create_topic(kafka_broker.bootstrap_servers, topic)
    produce(topic, [b"y"] * 20)
    with pytest.raises(TopicRecreatedError) as caught:
        plan(clients, group, topic, earlier=held)

    obey(kpipe, caught.value)

    after = plan(clients, group, topic, earlier=held)
    assert (after.ranges[0].range.start, after.ranges[0].range.end) == (0, 20)
    commit(clients, after)


def test_no_start_offset(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce, clients: Clients, group: str
) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 10)
    with pytest.raises(NoStartOffsetError) as caught:
        plan(clients, group, topic, start="error")

    obey(kpipe, caught.value)

    after = plan(clients, group, topic, start="error")
    assert after.ranges[0].range.start == 0
    commit(clients, after)
