"""How a slice is read: by how many tasks, and whether one of them makes all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kpipe_platform import JsonCodec, RawCodec
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.spark.source.reader import SliceReader
from kpipe_platform.spark.source.rows import SliceFrames, TopicCodecs

pytestmark = pytest.mark.spark


@pytest.fixture
def frames() -> Iterator[list[SliceFrames]]:
    found: list[SliceFrames] = []
    yield found
    for each in found:
        each.release()


@pytest.mark.parametrize(
    ("spans", "parallelism", "one_task"),
    [
        pytest.param([1], 8, True, id="a record"),
        pytest.param([1_000, 1_000, 3_000], 8, True, id="a few of several partitions"),
        pytest.param([1_000, 1_000, 3_001], 8, False, id="more of several partitions"),
        pytest.param([39_999], 8, True, id="one part"),
        pytest.param([40_000], 8, False, id="two parts"),
        pytest.param([40_000], 1, False, id="so many that the transaction would be open for long"),
    ],
)
def test_one_task_makes_what_several_would_make_no_sooner(
    spark: SparkSession, frames: list[SliceFrames], spans: list[int], parallelism: int, one_task: bool
) -> None:
    ranges = tuple(
        PlannedRange(OffsetRange("orders", number, 100, 100 + span), "id", 0, 100 + span, None)
        for number, span in enumerate(spans)
    )
    reader = SliceReader(
        spark,
        ConnectionSettings(bootstrap_servers="127.0.0.1:1"),
        Slice("g", "run", "s", ranges),
        "orders",
        isolation="read_committed",
        parallelism=parallelism,
    )
    made = reader.decoded(TopicCodecs(RawCodec(), JsonCodec("id long")))
    frames.append(made)
    assert made.one_task is one_task
