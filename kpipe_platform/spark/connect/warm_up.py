"""Warming up a server: loads Spark's classes, its code generator and the Python daemon before the first slice."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

_ROUNDS = 3
_ROWS = 2_000


def warm_up(session: SparkSession) -> None:
    """Run the operations of a slice on generated rows: parse JSON, cache, filter, shuffle, call Python, write JSON.

    Args:
        session: The session of the server.
    """

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    value = json.dumps({"id": 1, "note": "a"})
    for _ in range(_ROUNDS):
        rows = session.range(_ROWS).select("id", F.lit(value).alias("value"))
        parsed = rows.select("id", F.from_json("value", "id BIGINT, note STRING").alias("v"))
        cached = parsed.persist()
        try:
            good = cached.where("v is not null").select("id", F.to_json("v").alias("value"))
            good.repartition(1).sortWithinPartitions("id").mapInArrow(through, "id bigint, value string").count()
            cached.groupBy("v.note").count().collect()
        finally:
            cached.unpersist()
