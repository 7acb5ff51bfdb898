"""Outputs of records of which the stage set another row aside, in every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.spark.stage.notes import StageNotes, fault_frame
from kpipe_platform.spark.stage.whole_records import of_whole_records

pytestmark = pytest.mark.spark

SCHEMA = "id INT, _kafka STRUCT<topic: STRING, partition: INT, offset: BIGINT>"
PLACES = [("t", 0, 1), ("t", 0, 2), ("t", 1, 1), ("u", 0, 1), None]


def _polars(frame: DataFrame) -> Any:
    import polars

    return polars.from_arrow(frame.toArrow())


def _records(frame: DataFrame) -> list[KafkaRecord]:
    places = [row["_kafka"] for row in frame.collect()]
    return [KafkaRecord(*place) if place else KafkaRecord("t") for place in places]


def _ids(output: Any) -> list[int]:
    if isinstance(output, DataFrame):
        return [row["id"] for row in output.collect()]
    if isinstance(output, list):
        return [PLACES.index(None if r.offset is None else (r.topic, r.partition, r.offset)) for r in output]
    return list(output["id"].to_pylist() if hasattr(output["id"], "to_pylist") else output["id"])


FORMS: dict[str, Callable[[DataFrame], Any]] = {
    "spark": lambda frame: frame,
    "pandas": lambda frame: frame.toPandas(),
    "pyarrow": lambda frame: frame.toArrow(),
    "polars": _polars,
    "records": _records,
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_records_that_were_set_aside_are_left_out(spark: SparkSession, form: str) -> None:
    output = FORMS[form](spark.createDataFrame(list(enumerate(PLACES)), SCHEMA).coalesce(1))
    notes = StageNotes(faults=[fault_frame(spark, [("t", 0, 1, "{}")]), fault_frame(spark, [("u", 0, 1, "{}")] * 2)])
    assert _ids(of_whole_records(output, notes)) == [1, 2, 4]
    assert of_whole_records(output, StageNotes()) is output


def test_what_does_not_say_where_it_came_from_is_left_as_it_is(spark: SparkSession) -> None:
    notes = StageNotes(faults=[fault_frame(spark, [("t", 0, 1, "{}")])])
    frame = spark.createDataFrame([(1, "x")], "id INT, _kafka STRING")
    for output in (frame.drop("_kafka"), frame.drop("_kafka").toPandas(), frame.drop("_kafka").toArrow(), {"a": 1}):
        assert of_whole_records(output, notes) is output
    assert len(of_whole_records(frame.toPandas(), notes)) == 1
