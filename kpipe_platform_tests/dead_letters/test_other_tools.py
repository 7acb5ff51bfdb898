"""Dead letters that Kafka Connect and Spring Kafka themselves have written: read, listed and redriven."""

from __future__ import annotations

import base64
import json
import shlex
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kpipe_platform.cli.main import app
from kpipe_platform.jvm.jars import KAFKA_VERSION, class_path, fetch_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.jvm.ports import LOOPBACK, free_ports
from kpipe_platform.jvm.process import ManagedProcess
from kpipe_platform.testing.broker.config import LOG4J2_CONFIG
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.messages import ConsumedRecord
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform_tests.processes import wait_until

from .conftest import KEEP

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

TIME = 1_767_225_600_000
HEADERS = [("trace", b"\x80\xfe"), ("trace", b""), ("größe", b"1"), ("none", None), ("count", b"007"), ("trace", b"z")]
ATTEMPTS = "kpipe.redrive.attempts"
CONNECT = [f"org.apache.kafka:connect-{name}:{KAFKA_VERSION}" for name in ("runtime", "file", "json")]
LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3"
SPRING = "org.springframework.kafka:spring-kafka:4.0.0"

Kpipe = Callable[..., Any]


@pytest.fixture
def kpipe(kafka_broker: EmbeddedBroker) -> Kpipe:
    """Runs a command, and gives what it prints as JSON where it does."""

    def run(line: str) -> Any:
        env = {"KAFKA_BOOTSTRAP_SERVERS": kafka_broker.bootstrap_servers}
        result = CliRunner().invoke(app, shlex.split(line), env=env)
        assert result.exit_code == 0, result.output + repr(result.exception)
        return json.loads(result.stdout) if "--json" in line else result.stdout_bytes

    return run


@pytest.fixture
def source(kafka_topic: TopicFactory) -> str:
    return kafka_topic("payments", partitions=2, config=KEEP)


@pytest.fixture
def dead_letters(kafka_topic: TopicFactory) -> str:
    return kafka_topic("payments.dlq", partitions=2, config=KEEP)


def sent(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with a partition and a timestamp each, and every other one with headers."""
    return [
        {
            "partition": n % 2,
            "timestamp": TIME + n,
            **({"headers": HEADERS} if n % 3 == 0 else {}),
            **record,
        }
        for n, record in enumerate(records)
    ]


def whole(record: ConsumedRecord, *, without: str | None = None) -> tuple[Any, ...]:
    headers = tuple(pair for pair in record.headers if pair[0] != without)
    return record.partition, record.timestamp_ms, record.key, record.value, headers


def check_all(
    kpipe: Kpipe, consume: Consume, source: str, dead_letters: str, failed: dict[tuple[int, int], str], **about: Any
) -> None:
    """Every dead letter is shown with its bytes and its place, and redrive brings each back as it was."""
    before = consume(source)
    found = kpipe(f"dlq list {dead_letters} --json")
    places = {(each["original"]["partition"], each["original"]["offset"]): each for each in found}
    assert {place: each["exception"] for place, each in places.items()} == failed
    for record in before:
        each = places.get((record.partition, record.offset))
        if each is None:
            continue
        assert {name: each[name] for name in about} == about
        assert each["original"] == {
            "topic": source, "partition": record.partition, "offset": record.offset, "timestamp_ms": record.timestamp_ms
        }  # fmt: skip
        at = f"{each['partition']} {each['offset']}"
        shown = kpipe(f"dlq show {dead_letters} {at} --json")["record"]
        assert [(h["key"], _bytes(h["value_base64"])) for h in shown["headers"]] == list(record.headers)
        assert (_bytes(shown["key_base64"]), _bytes(shown["value_base64"])) == (record.key, record.value)
        if record.value is not None:
            assert kpipe(f"dlq show {dead_letters} {at} --raw") == record.value
    stats = kpipe(f"dlq stats {dead_letters} --json")
    assert (stats["total"], stats["by_topic"], stats["by_family"]) == (
        len(failed), {source: len(failed)}, {about["family"]: len(failed)}
    )  # fmt: skip
    kpipe(f"dlq redrive {dead_letters}")
    again = consume(source, settle_s=30.0)
    ends = {record.partition: record.offset for record in before}
    redriven = [record for record in again if record.offset > ends[record.partition]]
    assert {record.header(ATTEMPTS) for record in redriven} == {b"1"}
    expected = [whole(record) for record in before if (record.partition, record.offset) in failed]
    assert sorted(map(repr, (whole(record, without=ATTEMPTS) for record in redriven))) == sorted(map(repr, expected))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


# -------------------------------------------------------------------------------------------- Kafka Connect

BAD_JSON = [b"not JSON", b"\xff\xfe\x00", b'{"amount":', b"'single'", b"\x00" * 9, b'{"amount":1,}', b"\xc3\x28"]


@pytest.fixture
def connect(kafka_broker: EmbeddedBroker, source: str, dead_letters: str, tmp_path: Path) -> Iterator[ManagedProcess]:
    """A standalone worker with a sink of JSON whose dead letters go to a topic."""
    port = free_ports(1)[0]
    worker = {
        "bootstrap.servers": kafka_broker.bootstrap_servers,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": str(tmp_path / "offsets"),
        "plugin.discovery": "service_load",
        "plugin.path": str(tmp_path),
        "listeners": f"http://{LOOPBACK}:{port}",
    }
    sink = {
        "name": "ledger",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "tasks.max": "1",
        "file": str(tmp_path / "ledger.txt"),
        "topics": source,
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead_letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    for name, settings in (("worker", worker), ("sink", sink)):
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (tmp_path / f"{name}.properties").write_text(text, encoding="ascii")
    logging = tmp_path / "log4j2.properties"
    logging.write_text(LOG4J2_CONFIG, encoding="ascii")
    process = ManagedProcess(
        [
            *(find_java().path, "-Xmx256m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}"),
            *("-cp", class_path(fetch_jars(*CONNECT, LOGGING))),
            "org.apache.kafka.connect.cli.ConnectStandalone",
            *(tmp_path / "worker.properties", tmp_path / "sink.properties"),
        ],
        log_path=tmp_path / "connect.log",
    )
    process.start()
    yield process
    process.stop()


def test_what_kafka_connect_writes(
    connect: ManagedProcess, kpipe: Kpipe, produce: Produce, consume: Consume, source: str, dead_letters: str
) -> None:
    records = sent(
        [
            {"key": b'"k"', "value": b'{"amount":1}'},
            *({"key": b'"k"', "value": value} for value in BAD_JSON),
            {"key": None, "value": b"nothing"},
            {"key": b"\x80 no JSON", "value": b'{"amount":2}'},
            {"key": b"\x80 no JSON", "value": None},
            {"key": b'"k"', "value": b'{"amount":3}'},
        ]
    )
    produce(source, records)
    failed = {
        (record.partition, record.offset): "org.apache.kafka.connect.errors.DataException"
        for record in consume(source)
        if record.value in (*BAD_JSON, b"nothing") or record.key == b"\x80 no JSON"
    }

    def arrived(count: int) -> bool:
        assert connect.is_running(), connect.log_tail(60)
        return len(consume(dead_letters)) >= count

    wait_until(lambda: arrived(len(failed)), "the dead letters", 240)
    check_all(kpipe, consume, source, dead_letters, failed, family="connect", asset="ledger", attempts=0)
    # What was redriven fails again: a dead letter that says so.
    wait_until(lambda: arrived(2 * len(failed)), "the dead letters of what was redriven", 240)
    waiting = [each for each in kpipe(f"dlq list {dead_letters} --json") if not each["redriven"]]
    assert [each["attempts"] for each in waiting] == [1] * len(failed)
    assert {each["kind"] for each in waiting} == {"KEY_CONVERTER", "VALUE_CONVERTER"}
    kpipe(f"dlq redrive {dead_letters} --max-attempts 1 --create-parking-topic")
    # A record that brought an earlier hop's header: where it belongs is not for Connect's headers to say.
    left_over = [("__connect.errors.topic", b"elsewhere"), ("mine", b"1")]
    produce(source, [{"partition": 0, "key": b'"k"', "value": b"left over", "headers": left_over}])
    wait_until(lambda: arrived(2 * len(failed) + 1), "the dead letter with two topics", 240)
    kpipe(f"dlq redrive {dead_letters}")
    (kept,) = (each for each in kpipe(f"dlq list {dead_letters} --json") if not each["redriven"])
    assert kept["original"]["topic"] == "elsewhere"
    kpipe(f"dlq redrive {dead_letters} --to-topic {source} --partitioning by-key")
    (record,) = (
        each for each in consume(source, settle_s=30.0) if each.value == b"left over" and each.header(ATTEMPTS)
    )
    assert record.headers == (("mine", b"1"), (ATTEMPTS, b"1"))


# --------------------------------------------------------------------------------------------- Spring Kafka


def test_what_spring_kafka_writes(
    kafka_broker: EmbeddedBroker,
    kpipe: Kpipe,
    produce: Produce,
    consume: Consume,
    source: str,
    dead_letters: str,
) -> None:
    number, key = struct.pack(">i", 7), struct.pack(">q", 9)
    records = sent(
        [
            {"key": key, "value": number},
            {"key": None, "value": number},
            {"key": key, "value": None},
            {"key": key, "value": b"no number"},
            {"key": b"\x80", "value": number},
            {"key": b"", "value": b""},
            {"key": b"\x80", "value": b"\xff\x00"},
            {"key": None, "value": None},
        ]
    )
    produce(source, records)
    program = Path(__file__).with_name("SpringDeadLetters.java")
    done = subprocess.run(
        [
            *(find_java().path, "-Xmx256m", "-XX:+UseSerialGC", "-cp", class_path(fetch_jars(SPRING)), program),
            *(kafka_broker.bootstrap_servers, source, dead_letters, str(len(records))),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    package = "org.springframework.kafka"
    failed = {
        (record.partition, record.offset): f"{package}.listener.ListenerExecutionFailedException"
        if record.key in (key, None) and record.value in (number, None)
        else f"{package}.support.serializer.DeserializationException"
        for record in consume(source)
    }
    check_all(kpipe, consume, source, dead_letters, failed, family="spring", asset="billing", attempts=0)
