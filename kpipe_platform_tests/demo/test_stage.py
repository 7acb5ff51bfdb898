from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from kpipe_platform.codecs import JsonCodec
from kpipe_platform.codecs.schema import to_ddl
from kpipe_platform.codecs.types import json_type
from kpipe_platform.demo.assets import carrier_delays, flights_enriched
from kpipe_platform.demo.topics import ENRICHED_FLIGHT, FLIGHT
from kpipe_platform.spark.sink.output_schema import check_output_schema

pytestmark = pytest.mark.spark

_KAFKA = "_kafka STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"
_KNOWN: dict[str, Any] = {
    **dict.fromkeys(("year", "month", "day", "sched_dep_time", "sched_arr_time", "hour", "minute"), 1),
    **{"dep_time": 517, "flight": 1545, "origin": "EWR", "dest": "IAH", "distance": 1400},
}


def _flight(offset: int, **fields: Any) -> dict[str, Any]:
    return {**_KNOWN, **fields, "_kafka": {"topic": "flights", "partition": 0, "offset": offset}}


@pytest.fixture(scope="module")
def enriched(spark: SparkSession) -> list[dict[str, Any]]:
    """What the asset makes of five flights, called by hand as in any unit test."""
    rows = [
        _flight(0, carrier="UA", tailnum="N14228", arr_delay=14, air_time=227),
        _flight(1, carrier="UA", tailnum="N14228", arr_delay=15, air_time=0),
        _flight(2, carrier="UA", tailnum="NOBODY", arr_delay=59, air_time=60),
        _flight(3, carrier="??", tailnum=None, arr_delay=60, air_time=60),
        _flight(4, carrier="??", tailnum=None, arr_delay=None, air_time=None),
    ]
    ddl = to_ddl(json_type(JsonCodec(FLIGHT).fields))
    flights = spark.createDataFrame(rows, f"{ddl}, {_KAFKA}")
    planes = spark.createDataFrame(
        [("N14228", 1999, "Fixed wing multi engine", "BOEING", "737-824", 2, 149)],
        "tailnum STRING, year BIGINT, type STRING, manufacturer STRING, model STRING, engines BIGINT, seats BIGINT",
    )
    airlines = spark.createDataFrame([("UA", "United Air Lines Inc.")], "carrier STRING, name STRING")
    frame = flights_enriched(flights, planes, airlines)
    check_output_schema(frame, JsonCodec(ENRICHED_FLIGHT), "flights.enriched")
    return [row.asDict(recursive=True) for row in frame.orderBy("_kafka.offset").collect()]


def test_every_flight_stays_with_its_coordinates(enriched: list[dict[str, Any]]) -> None:
    assert [row["_kafka"]["offset"] for row in enriched] == [0, 1, 2, 3, 4]


def test_delay_classes(enriched: list[dict[str, Any]]) -> None:
    assert [row["delay_class"] for row in enriched] == ["on_time", "late", "late", "very_late", "unknown"]


def test_speed(enriched: list[dict[str, Any]]) -> None:
    assert [row["speed_mph"] for row in enriched] == [370.0, None, 1400.0, 1400.0, None]


def test_planes_and_airlines_that_are_not_known_stay_empty(enriched: list[dict[str, Any]]) -> None:
    assert [row["manufacturer"] for row in enriched] == ["BOEING", "BOEING", None, None, None]
    assert [row["built"] for row in enriched] == [1999, 1999, None, None, None]
    assert [row["airline"] for row in enriched] == [*["United Air Lines Inc."] * 3, None, None]


def test_delays_are_a_row_a_flight(spark: SparkSession, enriched: list[dict[str, Any]]) -> None:
    rows = [{name: value for name, value in row.items() if name != "_kafka"} for row in enriched]
    frame = spark.createDataFrame(rows, json_type(JsonCodec(ENRICHED_FLIGHT).fields))
    assert carrier_delays(frame).count() == len(enriched)
