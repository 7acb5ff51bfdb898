from __future__ import annotations

from dataclasses import replace

import pytest

from kpipe_platform.dead_letters import (
    DeadLetterContext,
    OriginRange,
    connect_headers,
    error_headers,
    spring_headers,
)
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault

RECORD = KafkaRecord("flights", 3, 42, 1_357_017_420_000, "create_time", b"k", b"v", (("a", b"1"), ("a", None)))
FAULT = Fault(Component.STAGE, "ValueError", "ValueError", "né\ud800", 0, stacktrace="Traceback")
CONTEXT = DeadLetterContext("flights.dlq", "flights_enriched", "7f3e", "kpipe.flights_enriched")


def test_connect_headers_are_text() -> None:
    assert connect_headers(RECORD, FAULT, CONTEXT) == [
        ("__connect.errors.topic", b"flights"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"42"),
        ("__connect.errors.connector.name", b"flights_enriched"),
        ("__connect.errors.task.id", b"7f3e"),
        ("__connect.errors.stage", b"TRANSFORMATION"),
        ("__connect.errors.class.name", b"kpipe_platform.stage"),
        ("__connect.errors.exception.class.name", b"ValueError"),
        ("__connect.errors.exception.message", b"n\xc3\xa9\\ud800"),
        ("__connect.errors.exception.stacktrace", b"Traceback"),
    ]


@pytest.mark.parametrize(
    ("component", "stage"),
    [
        (Component.SOURCE, b"KAFKA_CONSUME"),
        (Component.DECODE_KEY, b"KEY_CONVERTER"),
        (Component.DECODE_VALUE, b"VALUE_CONVERTER"),
        (Component.STAGE, b"TRANSFORMATION"),
        (Component.DESTINATION, b"KAFKA_PRODUCE"),
        (Component.DEAD_LETTER, b"KAFKA_PRODUCE"),
    ],
)
def test_components_have_the_names_of_connects_stages(component: Component, stage: bytes) -> None:
    assert (
        dict(connect_headers(RECORD, replace(FAULT, component=component), CONTEXT))["__connect.errors.stage"] == stage
    )


def test_what_is_not_known_has_no_header() -> None:
    headers = dict(connect_headers(KafkaRecord("out"), replace(FAULT, stacktrace=None), CONTEXT))
    assert headers["__connect.errors.topic"] == b"out"
    assert not headers.keys() & {f"__connect.errors.{n}" for n in ("partition", "offset", "exception.stacktrace")}


def test_a_rejected_output_has_the_partition_of_its_slice() -> None:
    headers = dict(connect_headers(KafkaRecord("out"), FAULT, CONTEXT, OriginRange("flights", 3, 40, 50)))
    assert (headers["__connect.errors.topic"], headers["__connect.errors.partition"]) == (b"flights", b"3")
    assert "__connect.errors.offset" not in headers


def test_an_existing_header_is_not_overwritten() -> None:
    earlier = (("__connect.errors.topic", b"first"), ("__connect.errors.exception.message", None))
    added = [name for name, _ in connect_headers(replace(RECORD, headers=earlier), FAULT, CONTEXT)]
    assert "__connect.errors.topic" not in added
    assert "__connect.errors.exception.message" not in added
    assert "__connect.errors.partition" in added


def test_spring_headers_are_binary() -> None:
    assert spring_headers(RECORD, FAULT, CONTEXT) == [
        ("kafka_dlt-original-topic", b"flights"),
        ("kafka_dlt-original-partition", b"\x00\x00\x00\x03"),
        ("kafka_dlt-original-offset", b"\x00\x00\x00\x00\x00\x00\x00*"),
        ("kafka_dlt-original-timestamp", b"\x00\x00\x01\x3b\xf4\x8a\x90\xe0"),
        ("kafka_dlt-original-timestamp-type", b"CreateTime"),
        ("kafka_dlt-original-consumer-group", b"kpipe.flights_enriched"),
        ("kafka_dlt-exception-fqcn", b"ValueError"),
        ("kafka_dlt-exception-message", b"n\xc3\xa9\\ud800"),
        ("kafka_dlt-exception-stacktrace", b"Traceback"),
    ]


def test_spring_keeps_the_first_coordinates_and_adds_the_last_exception() -> None:
    earlier = (("kafka_dlt-original-topic", b"first"), ("kafka_dlt-exception-fqcn", b"Earlier"))
    added = spring_headers(replace(RECORD, headers=earlier), replace(FAULT, component=Component.DECODE_KEY), CONTEXT)
    assert ("kafka_dlt-original-topic", b"flights") not in added
    assert ("kafka_dlt-key-exception-fqcn", b"ValueError") in added
    again = spring_headers(replace(RECORD, headers=earlier), FAULT, CONTEXT)
    assert ("kafka_dlt-exception-fqcn", b"ValueError") in again


def test_families_come_in_the_order_asked_for() -> None:
    both = error_headers(RECORD, FAULT, replace(CONTEXT, header_families=("spring", "connect")))
    assert both == spring_headers(RECORD, FAULT, CONTEXT) + connect_headers(RECORD, FAULT, CONTEXT)
    assert error_headers(RECORD, FAULT, replace(CONTEXT, header_families=())) == []
