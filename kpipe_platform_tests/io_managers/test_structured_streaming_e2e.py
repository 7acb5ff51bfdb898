"""The same records through kpipe and Structured Streaming: the same values, except for what the codec guide lists."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kpipe_platform import JsonCodec, KafkaTopic, TextCodec, kafka_topic_asset
from kpipe_platform.codecs.types import json_type
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform_tests.values import SOURCE, record, text_of

from .conftest import Orders

pytestmark = [pytest.mark.broker, pytest.mark.spark]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "codecs.md"
LISTED = JsonCodec(
    "id BIGINT NOT NULL, level TINYINT, price DECIMAL(10,2), code VARCHAR(3), at TIMESTAMP, m MAP<STRING, INT>"
)


def stream(spark: SparkSession, orders: Orders, target: str, codec: JsonCodec, checkpoint: Path) -> None:
    """What Structured Streaming makes of the source topic."""
    servers = {"kafka.bootstrap.servers": orders.manager.source.connection.bootstrap_servers}
    read = {**servers, "subscribe": orders.source, "startingOffsets": "earliest", "includeHeaders": "true"}
    value = F.to_json(F.from_json(F.col("value").cast("string"), json_type(codec.fields)))
    rows = spark.readStream.format("kafka").options(**read).load().select("key", value.alias("value"), "headers")
    write = {**servers, "topic": target, "includeHeaders": "true", "checkpointLocation": str(checkpoint)}
    query = rows.writeStream.format("kafka").options(**write).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def through_both(
    spark: SparkSession, orders: Orders, target: str, codec: JsonCodec, sent: list[bytes | None], folder: Path
) -> list[tuple[bytes | None, bytes | str | None]]:
    """What Structured Streaming and kpipe write of each value; of a fault its kind."""
    orders.topic_asset = kafka_topic_asset(
        orders.source, value_codec=codec, key_codec=TextCodec(), partitions=1, name="orders"
    )
    headers = [("trace", b"\xff"), ("trace", b""), ("none", None)]
    orders.send(*({"key": str(n), "value": value, "headers": headers} for n, value in enumerate(sent)))
    orders.run(orders.asset(topic=KafkaTopic(orders.target, value_codec=JsonCodec())))
    stream(spark, orders, target, codec, folder)
    streamed, ours = orders.consume(target), orders.outputs()
    found: dict[int, bytes | str | None] = {int(record.key or b""): record.value for record in ours}
    letters = [decode_envelope(letter.value or b"") for letter in orders.letters()]
    found |= {int(e.original.key or b""): e.fault.kind for e in letters}
    assert [record.headers for record in streamed] == [tuple(headers)] * len(sent)
    assert {record.headers[:3] for record in ours} <= {tuple(headers)}
    theirs = {int(record.key or b""): record.value for record in streamed}
    return [(theirs[n], found[n]) for n in range(len(sent))]


def listed() -> list[tuple[str, str, str]]:
    """The table of the guide: a value, what Structured Streaming writes, what kpipe writes or the kind of the fault."""
    section = GUIDE.read_text(encoding="utf-8").partition("### Beside Structured Streaming")[2].partition("\n#")[0]
    rows = [re.findall(r"`([^`]*)`|(null)", line) for line in section.splitlines() if line.startswith("| `")]
    return [tuple(code or word for code, word in row) for row in rows]  # type: ignore[misc]


def test_the_guide_lists_what_differs(spark: SparkSession, orders: Orders, kafka_topic: Any, tmp_path: Path) -> None:
    rows = listed()
    sent: list[bytes | None] = [None if value == "null" else value.encode() for value, _, _ in rows]
    found = through_both(spark, orders, kafka_topic("streamed"), LISTED, sent, tmp_path)
    shown = [tuple(part.decode() if isinstance(part, bytes) else str(part or "null") for part in row) for row in found]
    assert [(value, *row) for (value, _, _), row in zip(rows, shown, strict=True)] == rows
    assert all(theirs != ours for _, theirs, ours in rows)


@pytest.mark.slow
def test_all_other_values_are_the_same(spark: SparkSession, orders: Orders, kafka_topic: Any, tmp_path: Path) -> None:
    random = Random(16)
    values = [record(random) for _ in range(300)]
    sent: list[bytes | None] = [None, *(text_of(value).encode() for value in values)]
    for theirs, ours in through_both(spark, orders, kafka_topic("streamed"), SOURCE, sent, tmp_path):
        assert not isinstance(ours, str)
        assert plain(theirs) == plain(ours)


def plain(value: bytes | None) -> Any:
    """A value without the digits of a second beyond three, the one thing that differs."""
    digits = re.sub(rb'(T\d\d:\d\d:\d\d\.\d{3})\d{3}(Z?")', rb"\1\2", value or b"null")
    return json.loads(digits, parse_float=Decimal)
