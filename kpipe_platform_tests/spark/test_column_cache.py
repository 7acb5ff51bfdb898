"""Columns that are made once."""

from __future__ import annotations

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from kpipe_platform.spark import column_cache as reused_module
from kpipe_platform.spark.column_cache import reused

pytestmark = pytest.mark.spark


def test_columns_are_made_once_for_a_jvm(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []

    @reused
    def column(name: str, added: int) -> Column:
        made.append((name, added))
        return F.col(name) + added

    frame = spark.range(3)
    for added in (1, 1, 2, 1):
        assert [row[0] for row in frame.select(column("id", added)).collect()] == [added, added + 1, added + 2]
    assert made == [("id", 1), ("id", 2)]
    # Another JVM knows nothing of the objects in this one.
    monkeypatch.setattr(reused_module, "_engine", lambda: "another JVM")
    column("id", 1)
    assert made == [("id", 1), ("id", 2), ("id", 1)]
