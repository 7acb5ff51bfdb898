"""AvroCodec does what kpipe relies on, with a registry and without."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from kpipe_platform import (
    AvroCodec,
    KafkaIOManager,
    SchemaRegistry,
)
from kpipe_platform.registry.wire import frame
from kpipe_platform.testing.codecs import CodecCase, check_codec, check_codec_in_topics
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry
from kpipe_platform_tests.codecs.managers import with_registry

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {
            "name": "legs",
            "type": {"type": "array", "items": {"type": "enum", "name": "Leg", "symbols": ["EWR", "JFK"]}},
        },
        {"name": "either", "type": ["null", "int", "string"]},
    ],
}
VALUES: list[dict[str, Any]] = [
    {
        "id": 2**63 - 1,
        "note": "äé中",
        "price": Decimal("-1234567.89"),
        "at": dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc),
        "legs": ["EWR", "JFK"],
        "either": {"member0": 5, "member1": None},
    },
    {"id": 0, "note": None, "price": Decimal("0.00"), "at": None, "legs": [], "either": None},
    {
        "id": 1,
        "note": "",
        "price": Decimal("0.01"),
        "at": None,
        "legs": [],
        "either": {"member0": None, "member1": "x"},
    },
]
FAULTS = {
    b"": "truncated",
    b"\x02": "truncated",
    b"\x02\x04": "not_avro",
    b"\x00\x02\x02\xff\x02\x01\x00\x00\x00": "not_utf8",
}
NOT_ENCODABLE = [{"id": "1"}, {**VALUES[1], "legs": ["LGA"]}, {**VALUES[1], "other": 1}, "text"]
MISFITS = [{**VALUES[1], "legs": ["LGA"]}]

CASES = {
    "plain": CodecCase(
        AvroCodec(FLIGHT, framing="none"),
        values=VALUES,
        faults={**FAULTS, b"\x00\x00\x02\x01\x00\x00\x00\x00": "trailing_bytes"},
        not_encodable=NOT_ENCODABLE,
        misfits=MISFITS,
    ),
    "registry": CodecCase(
        AvroCodec(FLIGHT),
        values=VALUES,
        faults={
            b"": "truncated_frame",
            b"\x07abcdef": "wrong_magic_byte",
            frame(2**31 - 2, b"\x00"): "unknown_schema_id",
        },
        not_encodable=NOT_ENCODABLE,
        misfits=MISFITS,
    ),
    "one value": CodecCase(
        AvroCodec('"string"'),
        values=["", "äé中"],
        faults={b"\x00": "truncated_frame"},
        not_encodable=[1, b"x", "\ud800"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_in_python(name: str, schema_registry: EmbeddedRegistry) -> None:
    check_codec(CASES[name], registry=SchemaRegistry(url=schema_registry.url).client(), topic=f"check-{name}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "one value" else pytest.mark.slow) for name in CASES]
)
def test_in_topics(name: str, kafka_io_manager: KafkaIOManager, schema_registry: EmbeddedRegistry) -> None:
    manager = with_registry(kafka_io_manager, SchemaRegistry(url=schema_registry.url), start="earliest")
    check_codec_in_topics(CASES[name], manager)
