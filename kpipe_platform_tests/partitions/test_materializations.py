"""Kpipe's own materializations behind those that others report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest

from kpipe_platform.io_managers.step import Step
from kpipe_platform.partitions.groups import Reads, reads_of
from kpipe_platform.partitions.materializations import last_materialization, own_materializations
from kpipe_platform.sensors.tick.in_flight import last_success_s
from kpipe_platform.slices.plan.ranges import LastMaterialization

KEY = dg.AssetKey(["shop", "orders"])
GROUP = "kpipe.shop.orders"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def stored(instance: dg.DagsterInstance, end: int, partition: str | None) -> None:
    """What a slice leaves."""
    ranges = [{"topic": "t", "partition": 0, "start": 0, "end": end, "topic_id": "id"}]
    metadata = {"kpipe/consumer_group": GROUP, "kpipe/ranges": dg.MetadataValue.json(ranges)}
    instance.report_runless_asset_event(dg.AssetMaterialization(KEY, partition=partition, metadata=metadata))


def reported(instance: dg.DagsterInstance, partition: str | None, times: int = 1) -> None:
    """What "Report materialization" in the UI leaves."""
    for _ in range(times):
        event = dg.AssetMaterialization(KEY, partition=partition, description="by hand", metadata={"note": "by hand"})
        instance.report_runless_asset_event(event)


READERS: dict[str, Callable[[dg.DagsterInstance, str | None], Any]] = {
    "plan": lambda instance, key: Step(KEY, GROUP, "", "", 1, key and (key,), instance).earlier(("t", 0)),  # type: ignore[arg-type]
    "group and topics": lambda instance, _: reads_of(instance, KEY),
    "last success": lambda instance, key: last_success_s(instance, KEY, key),
}


@pytest.mark.parametrize("partition", ["0", None])
@pytest.mark.parametrize("reader", READERS)
def test_what_was_reported_by_hand_hides_nothing(
    instance: dg.DagsterInstance, reader: str, partition: str | None
) -> None:
    reported(instance, partition)
    stored(instance, 3, partition)
    stored(instance, 7, partition)
    before = READERS[reader](instance, partition)
    assert before
    if reader == "plan":
        assert before == LastMaterialization(7, "id", GROUP)
    if reader == "group and topics":
        assert before == Reads(GROUP, ("t",))
    reported(instance, partition, 3)
    assert READERS[reader](instance, partition) == before


def test_one_that_only_others_materialized(instance: dg.DagsterInstance) -> None:
    assert last_materialization(instance, KEY) is None
    reported(instance, "0", 2)
    assert last_materialization(instance, KEY, "0") is None
    assert last_success_s(instance, KEY, "0") is None


def test_all_of_them_are_found_page_by_page(instance: dg.DagsterInstance) -> None:
    for end in range(3):
        stored(instance, end, "0")
        reported(instance, "0", 60)
        stored(instance, 99, "1")
    found = [record.asset_materialization for record in own_materializations(instance, KEY, "0")]
    assert [each.metadata["kpipe/ranges"].value[0]["end"] for each in found if each] == [2, 1, 0]  # type: ignore[index]
