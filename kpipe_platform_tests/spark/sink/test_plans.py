"""What a plan reads, in a session of this process; on a Connect server see ``connect_cases``."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.spark.sink.plans import reads_only
from kpipe_platform.spark.source.reader import read_ranges
from kpipe_platform.spark.source.rows import is_small
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, TopicFactory
from kpipe_platform_tests.io_managers.conftest import CACHED
from kpipe_platform_tests.spark.plan_cases import check

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_what_a_plan_reads(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path)


def test_kafkas_rows_come_by_the_second_version_of_sparks_source(
    spark: SparkSession, kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, consume: Consume
) -> None:
    """By the first one each row becomes a Scala object and is taken apart again: a third of a copy's time."""
    topic = kafka_topic("plans")
    settings = ConnectionSettings(bootstrap_servers=kafka_broker.bootstrap_servers)
    one, other = (
        read_ranges(spark, settings, [OffsetRange(topic, 0, 0, 5)], isolation="read_committed", group="g", parts=1)
        for _ in range(2)
    )
    assert "BatchScan" in one._jdf.queryExecution().executedPlan().toString()
    twice = one.alias("a").join(one.alias("b"), "offset").select("offset").union(one.select("offset"))
    assert reads_only(twice, [one])
    assert not reads_only(twice, [other])
    # What people write of their own, as they write it everywhere: the second version's sink refuses it.
    written = kafka_topic("written")
    sink = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "topic": written}
    spark.range(3).selectExpr("CAST(id AS STRING) AS value").write.format("kafka").options(**sink).save()
    assert len(consume(written)) == 3


def test_tests_that_need_a_cached_slice_have_one() -> None:
    assert not is_small(CACHED)
