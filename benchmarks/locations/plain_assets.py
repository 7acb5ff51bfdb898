"""Assets of Dagster alone, with the same keys, inputs and partitions as those of kpipe."""

from __future__ import annotations

import dagster as dg

from benchmarks.locations import ASSETS_A_TOPIC, PARTITIONS, topics_of

_PARTITIONS = dg.StaticPartitionsDefinition([str(number) for number in range(PARTITIONS)])


def definitions(assets: int) -> dg.Definitions:
    """So many assets, and the observable ones that they read."""
    topics = [_topic(number) for number in range(topics_of(assets))]
    copies = [_copy(topics[number // ASSETS_A_TOPIC], f"copied_{number}") for number in range(assets)]
    # Never written to: nothing runs.
    manager = dg.FilesystemIOManager(base_dir="unused")
    return dg.Definitions(assets=[*topics, *copies], resources={"kafka_io_manager": manager})


def _topic(number: int) -> dg.AssetsDefinition:
    spec = dg.AssetSpec([f"orders_{number}", "orders"], partitions_def=_PARTITIONS)

    @dg.multi_observable_source_asset(
        specs=[spec.with_io_manager_key("kafka_io_manager")], name=spec.key.to_python_identifier()
    )
    def observed() -> None: ...

    return observed


def _copy(topic: dg.AssetsDefinition, name: str) -> dg.AssetsDefinition:
    @dg.asset(
        name=name,
        ins={"orders": dg.AssetIn(topic.key)},
        partitions_def=_PARTITIONS,
        io_manager_key="kafka_io_manager",
    )
    def copied(orders: object) -> object:
        return orders

    return copied
