"""What ``kafka/client/_compat.py`` relies on in librdkafka. Fails first when librdkafka is upgraded."""

from __future__ import annotations

import ast
import logging
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

import kpipe_platform
from kpipe_platform.kafka.client import _compat
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.plugin import TopicFactory
from kpipe_platform_tests.processes import wait_until

PACKAGE = Path(kpipe_platform.__file__).parent

# After an upgrade: run this file, read the release notes for what _compat.py relies on, and write the new version here.
LIBRDKAFKA = "2.16.0"


def test_the_contracts_below_were_checked_with_this_version_of_librdkafka() -> None:
    assert confluent_kafka.libversion()[0] == LIBRDKAFKA


def compared_texts(path: Path) -> Iterator[str]:
    """Comparisons with the text of a Kafka error: ``... in error.str()``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare) and any(
            isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "str"
            for each in ast.walk(node)
        ):
            yield ast.unparse(node)


def test_no_other_module_compares_the_text_of_an_error() -> None:
    found = {str(path.relative_to(PACKAGE)): list(compared_texts(path)) for path in PACKAGE.rglob("*.py")}
    assert [path for path, texts in found.items() if texts] == ["kafka/client/_compat.py"]


# ----------------------------------------------------------------------------------------- of a broker


def first_error(consumers: list[Consumer]) -> KafkaError:
    """The first fatal error that one of the members reports."""
    errors: list[KafkaError] = []

    def reported() -> bool:
        for consumer in consumers:
            message = consumer.poll(0.1)
            error = None if message is None else message.error()
            if error is not None and error.code() == KafkaError._FATAL:
                errors.append(error)
        return bool(errors)

    wait_until(reported, "a fatal error", 60)
    return errors[0]


@pytest.mark.broker
@pytest.mark.parametrize(
    ("protocol", "cause"),
    [("classic", KafkaError.FENCED_INSTANCE_ID), ("consumer", KafkaError.UNRELEASED_INSTANCE_ID)],
)
def test_the_cause_of_a_consumers_fatal_error_is_in_its_text(
    protocol: str, cause: int, kafka_topic: TopicFactory, settings: ConnectionSettings
) -> None:
    topic = kafka_topic("fatal")
    config = {
        **settings.for_librdkafka(),
        "group.id": f"fatal-{uuid.uuid4().hex[:8]}",
        "group.instance.id": "blue",
        "group.protocol": protocol,
    }
    members: list[Consumer] = []
    try:
        for _ in range(2):
            members.append(Consumer(config))
            members[-1].subscribe([topic])
            if len(members) == 1:
                wait_until(lambda: (members[0].poll(0.1), bool(members[0].assignment()))[1], "an assignment", 60)
        error = first_error(members)
    finally:
        for member in members:
            with suppress(KafkaException):
                member.close()
    # If the client reports the code of the cause one day, its text need not be compared.
    assert error.code() == KafkaError._FATAL
    found = _compat.fatal_cause(error)
    assert found.code() == cause
    assert found.fatal()


def test_another_error_is_its_own_cause() -> None:
    for error in (KafkaError(KafkaError._FATAL, "of another kind"), KafkaError(KafkaError._TRANSPORT, "away")):
        assert _compat.fatal_cause(error) is error


@pytest.fixture
def transactional(kafka_topic: TopicFactory, settings: ConnectionSettings) -> Iterator[tuple[Producer, str, Any]]:
    """A producer with an open transaction, its topic, and a function that fences it."""
    config = {**settings.for_librdkafka(), "transactional.id": f"compat-{uuid.uuid4().hex[:8]}"}
    topic = kafka_topic("fenced")
    producers: list[Producer] = []

    def another() -> Producer:
        producers.append(Producer(config))
        producers[-1].init_transactions(30)
        return producers[-1]

    first = another()
    first.begin_transaction()
    first.produce(topic, b"a")
    first.flush(30)
    yield first, topic, another
    for producer in producers:
        producer.purge()


@pytest.mark.broker
def test_a_fatal_error_is_raised_though_a_callback_ran_after_it(transactional: tuple[Producer, str, Any]) -> None:
    producer, topic, fence = transactional
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    fence()
    for _ in range(3):
        producer.produce(topic, b"b", on_delivery=on_delivery)
    with pytest.raises(KafkaException) as caught:
        _compat.serve_reports(lambda: producer.flush(30))
    assert caught.value.args[0].code() == KafkaError._FENCED


def test_only_an_exception_of_the_client_replaces_pythons() -> None:
    fatal = KafkaException(KafkaError(KafkaError._FENCED))

    def poll() -> int:
        raise SystemError("returned a result with an exception set") from fatal

    with pytest.raises(KafkaException) as caught:
        _compat.serve_reports(poll)
    assert caught.value is fatal

    def other() -> int:
        raise SystemError("something else")

    with pytest.raises(SystemError, match="something else"):
        _compat.serve_reports(other)
    assert _compat.serve_reports(lambda: 3) == 3


@pytest.mark.broker
def test_a_producer_reports_the_cause_of_its_fatal_error_when_it_aborts(
    transactional: tuple[Producer, str, Any],
) -> None:
    producer, topic, fence = transactional
    fatal = KafkaError(KafkaError._FATAL)
    # Without a fatal error, the abort succeeds.
    assert _compat.producer_fatal_cause(producer, fatal) is fatal
    producer.begin_transaction()
    producer.produce(topic, b"b")
    producer.flush(30)
    fence()
    producer.produce(topic, b"c")
    with suppress(KafkaException):
        producer.flush(30)
    assert _compat.producer_fatal_cause(producer, fatal).code() == KafkaError._FENCED


@pytest.mark.broker
def test_purged_records_have_codes_of_their_own(transactional: tuple[Producer, str, Any]) -> None:
    producer, topic, _ = transactional
    codes: list[int] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            codes.append(error.code())

    producer.produce(topic, b"b", on_delivery=on_delivery)
    producer.purge()
    wait_until(lambda: (producer.poll(0.1), bool(codes))[1], "the purged record", 30)
    assert set(codes) <= _compat.PURGED_CODES


# -------------------------------------------------------------------------------------- of properties


class Lines(logging.Handler):
    """Keeps log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def refusal(properties: dict[str, Any]) -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        Producer(properties)
    error: KafkaError = caught.value.args[0]
    return error


def test_only_the_text_separates_an_unknown_property_from_a_wrong_value() -> None:
    unknown, wrong = refusal({"linger.msec": "1"}), refusal({"linger.ms": "soon"})
    assert unknown.code() == wrong.code() == KafkaError._INVALID_ARG
    assert _compat.is_unknown_property(unknown.str())
    assert not _compat.is_unknown_property(wrong.str())
    # An empty value is refused too, but not for the name.
    assert not _compat.is_unknown_property(refusal({"linger.ms": ""}).str())


def test_a_producer_logs_that_it_ignores_a_property_of_consumers() -> None:
    logger, handler = logging.Logger("test"), Lines()  # noqa: LOG001
    logger.addHandler(handler)
    Producer({"fetch.min.bytes": "1"}, logger=logger).poll(0)
    found = _compat.ignored_by_producer(handler.lines)
    assert found is not None
    assert found.startswith("Configuration property fetch.min.bytes is a consumer property")
    assert _compat.ignored_by_producer(line for line in handler.lines if "fetch" not in line) is None
