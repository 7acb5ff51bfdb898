"""Removal of all rows of records that a stage set aside, so that no record is both written and dead-lettered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import compress
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.spark.stage.notes import StageNotes

_COORDINATES = ("topic", "partition", "offset")
_ASIDE = "_kpipe_set_aside"


def of_whole_records(output: Any, notes: StageNotes) -> Any:
    """Remove the output rows of records of which the stage set aside another row.

    Needed for parallel writers and for other stores. A single writer of a whole slice excludes these rows itself.

    Args:
        output: The stage's output, in any form. Returned unchanged if it has no ``_kafka``.
        notes: The stage's notes.
    """
    if not notes.faults:
        return output
    coordinates = reduce(DataFrame.union, notes.faults).select(*_COORDINATES)
    if isinstance(output, DataFrame):
        return _without(output, coordinates)
    kafka = _kafka_of(output)
    if kafka is None:
        return output
    gone = {tuple(row) for row in coordinates.collect()}
    keep = [_coordinates(one) not in gone for one in kafka]
    if isinstance(output, list):
        return list(compress(output, keep))
    if isinstance(output, pa.Table):
        return output.filter(pa.array(keep, pa.bool_()))
    # pandas and polars are optional, so their types are not imported.
    return output.loc[keep] if hasattr(output, "loc") else output.filter(keep)


def _without(output: DataFrame, coordinates: DataFrame) -> DataFrame:
    if "_kafka" not in output.columns or not set(_COORDINATES) <= set(output.select("_kafka.*").columns):
        return output
    aside = coordinates.select(F.struct(*_COORDINATES).alias(_ASIDE))
    same = [F.col(f"_kafka.{name}") == F.col(f"{_ASIDE}.{name}") for name in _COORDINATES]
    # Broadcast join, because a shuffle would not keep the order of a partition's records.
    return output.join(F.broadcast(aside), reduce(Column.__and__, same), "left_anti")


def _kafka_of(output: Any) -> Iterable[Any] | None:
    """The coordinates of each row; None if the output has no ``_kafka``."""
    if isinstance(output, list):
        return output
    if isinstance(output, pa.Table):
        return output.column("_kafka").to_pylist() if "_kafka" in output.column_names else None
    return output["_kafka"] if "_kafka" in getattr(output, "columns", ()) else None


def _coordinates(one: Any) -> tuple[Any, ...] | None:
    if isinstance(one, KafkaRecord):
        return one.topic, one.partition, one.offset
    fields = one.asDict() if isinstance(one, Row) else one
    return tuple(map(fields.get, _COORDINATES)) if isinstance(fields, Mapping) else None
