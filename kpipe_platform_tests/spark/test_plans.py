"""What a plan reads, in a session of this process; on a Connect server see ``connect_cases``."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kpipe_platform.spark.frames import is_small
from kpipe_platform_tests.io_managers.conftest import CACHED
from kpipe_platform_tests.spark.plan_cases import check, check_copies

pytestmark = pytest.mark.spark


def test_what_a_plan_reads(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path)


def test_what_a_plan_copies(spark: SparkSession) -> None:
    check_copies(spark)


def test_tests_that_need_a_cached_slice_have_one() -> None:
    assert not is_small(CACHED)
