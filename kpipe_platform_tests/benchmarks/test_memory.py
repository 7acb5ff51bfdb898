"""The memory of a run's processes is that of the kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks.memory import PeakMemory, memory_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")


def test_a_peak_stays_after_the_memory_is_given_back() -> None:
    before = memory_of(os.getpid())["driver_rss_mib"]

    with PeakMemory() as memory:
        taken = bytearray(os.urandom(1)) * (200 * 2**20)
        held = memory_of(os.getpid())["driver_rss_mib"]
        # Looked at while it is held.
        while memory.found.get("driver_rss_mib", 0.0) < before + 150:
            assert len(taken)
        del taken

    assert held > before + 150
    assert memory.found["driver_rss_mib"] > before + 150
    assert memory_of(os.getpid())["driver_rss_mib"] < before + 150


@pytest.mark.spark
def test_workers_and_the_jvm_are_found_below_this_process(spark: SparkSession) -> None:
    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Filled again and again, for longer than the time between two looks.
        for _ in range(20):
            assert len(bytearray(os.urandom(1)) * (150 * 2**20))
        yield from batches

    with PeakMemory() as memory:
        spark.range(1).mapInArrow(hold, "id bigint").collect()

    assert memory.found["worker_rss_mib"] > 150
    assert memory.found["jvm_rss_mib"] > 150


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert memory_of(2**22 + 1) == {}
