from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from kpipe_platform.demo.tables import ParquetTableIOManager, slice_name
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.current import storing
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.resources.spark import SparkEngine

KEY = dg.AssetKey("delays")


def _slice(*ranges: tuple[int, int, int]) -> Slice:
    planned = [PlannedRange(OffsetRange("t", number, start, end), "id", 0, end, start) for number, start, end in ranges]
    return Slice("group", "run", "slice", tuple(planned))


def test_a_slice_that_is_repeated_and_reaches_further_has_the_same_name() -> None:
    assert slice_name(_slice((0, 5, 9), (1, 0, 3))) == "t-0-5_t-1-0"
    assert slice_name(_slice((0, 5, 90), (1, 0, 30))) == "t-0-5_t-1-0"
    assert slice_name(_slice((0, 6, 9), (1, 0, 3))) != slice_name(_slice((0, 5, 9), (1, 0, 3)))


def test_names_fit_a_file_system_whatever_the_number_of_partitions() -> None:
    many = [slice_name(_slice(*((n, start, start + 1) for n in range(500)))) for start in (0, 1)]
    assert max(map(len, many)) < 200
    assert many[0] != many[1]


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> ParquetTableIOManager:
    return ParquetTableIOManager(base_dir=str(tmp_path), spark=SparkEngine())


def _store(tables: ParquetTableIOManager, frame: DataFrame, slice_: Slice | None = None) -> None:
    context = dg.build_output_context(asset_key=KEY)
    if slice_ is None:
        tables.handle_output(context, frame)
        return
    with storing(slice_):
        tables.handle_output(context, frame)


def _ids(tables: ParquetTableIOManager) -> list[int]:
    frame = tables.load_input(dg.build_input_context(asset_key=KEY))
    return sorted(row["id"] for row in frame.collect())


@pytest.mark.spark
def test_a_whole_asset_replaces_its_table(spark: SparkSession, tables: ParquetTableIOManager) -> None:
    _store(tables, spark.range(3))
    assert _ids(tables) == [0, 1, 2]
    _store(tables, spark.range(10, 12))
    assert _ids(tables) == [10, 11]


@pytest.mark.spark
def test_slices_add_up_and_a_repeated_one_replaces_itself(spark: SparkSession, tables: ParquetTableIOManager) -> None:
    _store(tables, spark.range(3), _slice((0, 0, 3)))
    _store(tables, spark.range(3, 5), _slice((0, 3, 5)))
    assert _ids(tables) == [0, 1, 2, 3, 4]
    # The run died before its offsets were stored; two records came until the next one.
    _store(tables, spark.range(3, 7), _slice((0, 3, 7)))
    assert _ids(tables) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.spark
def test_a_table_that_nobody_stored_says_what_to_do(tables: ParquetTableIOManager) -> None:
    with pytest.raises(ConfigError, match="materialize delays first"):
        tables.load_input(dg.build_input_context(asset_key=KEY))
