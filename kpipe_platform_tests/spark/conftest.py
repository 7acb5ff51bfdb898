"""Records as a stage sees them, made without a broker."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import JsonCodec, TextCodec
from kpipe_platform.spark.source.reader import _SOURCE_COLUMNS
from kpipe_platform.spark.source.rows import TopicCodecs, decode_rows

Records = Callable[..., DataFrame]
NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.timezone.utc)


@pytest.fixture
def records(spark: SparkSession) -> Records:
    """Makes the good rows of a slice of ``orders/0`` of JSON objects, with a header of bytes that are no text."""

    def make(rows: list[dict[str, Any]], schema: str = "id BIGINT NOT NULL, note STRING") -> DataFrame:
        raw = [
            (b"k", json.dumps(row).encode(), "orders", 0, offset, NOON, 0, [("h", b"\xff")])
            for offset, row in enumerate(rows)
        ]
        frame = spark.createDataFrame(raw, _SOURCE_COLUMNS)
        return decode_rows(frame, TopicCodecs(TextCodec(), JsonCodec(schema)), src=F.lit(0)).good

    return make
