"""Partition events as observations, and that they are not taken for new data."""

from __future__ import annotations

import dagster as dg

from kpipe_platform.observability import PartitionEvent, PartitionEventKind
from kpipe_platform.partitions.observations import observations_of
from kpipe_platform_tests.metadata import plain_metadata

KEY = dg.AssetKey("a")


def event(partition: int, topic: str = "orders", **more: object) -> PartitionEvent:
    kind = more.pop("kind", PartitionEventKind.STARTED)
    return PartitionEvent(kind, topic, partition, "kpipe.a", **more)  # type: ignore[arg-type]


def test_each_dagster_partition_has_its_own() -> None:
    found = observations_of([event(0, start=0, end=5, run_id="r"), event(1)], KEY, partitioned=True)
    assert [(each.partition, each.description) for each in found] == [
        ("0", "started: orders/0 [0, 5)"),
        ("1", "started: orders/1"),
    ]
    metadata = plain_metadata(found[0].metadata)
    assert {
        name: metadata[name] for name in ("event", "topic", "partition", "offset_range", "consumer_group", "run")
    } == {
        "event": "started",
        "topic": "orders",
        "partition": 0,
        "offset_range": "[0, 5)",
        "consumer_group": "kpipe.a",
        "run": "r",
    }
    assert all(each.data_version is None and not each.tags for each in found)


def test_several_topics_of_one_partition_are_one_observation_with_a_table() -> None:
    [found] = observations_of([event(2, "a"), event(2, "b", reason="why")], KEY, partitioned=True)
    assert found.partition == "2"
    assert found.metadata["kpipe/partition_count"].value == 2
    rows = [record.data for record in found.metadata["kpipe/by_partition"].records]  # type: ignore[attr-defined]
    assert rows == [{"topic": "a", "partition": 2}, {"topic": "b", "partition": 2}]
    assert found.metadata["kpipe/reason"].value == "why"


def test_an_unpartitioned_asset_has_one_for_all_and_the_table_is_bounded() -> None:
    [found] = observations_of([event(number) for number in range(1_000)], KEY, partitioned=False)
    assert found.partition is None
    assert found.metadata["kpipe/partition_count"].value == 1_000
    assert len(found.metadata["kpipe/by_partition"].records) == 100  # type: ignore[attr-defined]


def report(instance: dg.DagsterInstance, observations: list[dg.AssetObservation]) -> None:
    for observation in observations:
        instance.report_runless_asset_event(observation)


def test_eager_assets_downstream_are_not_started_by_them() -> None:
    partitions = dg.StaticPartitionsDefinition(["0", "1"])

    @dg.asset(partitions_def=partitions)
    def a() -> None: ...

    @dg.asset(partitions_def=partitions, deps=[a], automation_condition=dg.AutomationCondition.eager())
    def below() -> None: ...

    definitions = dg.Definitions([a, below])

    def requested(cursor: object) -> tuple[int, object]:
        result = dg.evaluate_automation_conditions(definitions, instance, cursor=cursor)  # type: ignore[arg-type]
        return result.get_num_requested(below.key), result.cursor

    with dg.DagsterInstance.ephemeral() as instance:
        for asset in (a, below):
            for key in ("0", "1"):
                assert dg.materialize([a, below], selection=[asset], partition_key=key, instance=instance).success
        _, cursor = requested(None)
        for kind in PartitionEventKind:
            report(instance, observations_of([event(0, kind=kind)], a.key, partitioned=True))
            report(instance, observations_of([event(0, kind=kind)], below.key, partitioned=True))
        count, cursor = requested(cursor)
        assert count == 0
        # The same evaluation starts it when there is something new.
        dg.materialize([a], partition_key="1", instance=instance)
        count, _ = requested(cursor)
        assert count == 1


def test_a_run_downstream_of_an_asset_that_was_only_observed_takes_no_harm() -> None:
    @dg.asset
    def a() -> None: ...

    @dg.asset(deps=[a])
    def below() -> None: ...

    with dg.DagsterInstance.ephemeral() as instance:
        report(instance, observations_of([event(0)], a.key, partitioned=False))
        assert dg.materialize([a, below], selection=[below], instance=instance).success
        assert instance.fetch_observations(a.key, limit=5).records
