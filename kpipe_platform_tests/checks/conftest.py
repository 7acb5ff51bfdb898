"""An orders topic whose group is moved and whose checks run without the asset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import dagster as dg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from kpipe_platform import KafkaConnection, KafkaIOManager, KafkaSource
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.io_managers.conftest import Orders, instance, make_orders, orders
from kpipe_platform_tests.io_managers.killing import wait_until
from kpipe_platform_tests.metadata import plain_metadata

__all__ = ["admin", "delete_records", "instance", "make_orders", "move", "orders", "run_check", "unreachable"]


@pytest.fixture
def admin(kafka_broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})


def move_group(admin: AdminClient, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """Move a group's offset as another tool than kpipe does: without a note beside it."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])

    def moved() -> bool:
        # The answer is a success, and the partition in it may hold an error all the same: the coordinator is loading.
        (future,) = admin.alter_consumer_group_offsets([wanted]).values()
        return all(tp.error is None for tp in future.result(10).topic_partitions)

    wait_until(moved, f"group {group} at offset {offset} of {topic}/{partition}")


@pytest.fixture
def move(admin: AdminClient) -> Callable[..., None]:
    return partial(move_group, admin)


@pytest.fixture
def delete_records(admin: AdminClient) -> Callable[[str, int, int], None]:
    def before(topic: str, partition: int, offset: int) -> None:
        for future in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(10)

    return before


@pytest.fixture
def run_check() -> Callable[..., dg.AssetCheckEvaluation]:
    """Runs a check without its asset, as a schedule or the UI does."""

    def run(
        orders: Orders,
        asset: dg.AssetsDefinition,
        check: dg.AssetChecksDefinition,
        partition: str | None = "0",
        *,
        manager: Any = None,
    ) -> dg.AssetCheckEvaluation:
        defs = dg.Definitions(
            assets=[orders.topic_asset, asset],
            asset_checks=[check],
            resources={"kafka_io_manager": manager or orders.manager},
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.checks(check))],
        )
        job = defs.resolve_job_def("checks")
        # As a run of the daemon names its partition; `partition_key=` looks for an asset in the job.
        tags = {} if partition is None else {"dagster/partition": partition}
        result = job.execute_in_process(instance=orders.instance, tags=tags)
        (evaluation,) = result.get_asset_check_evaluations()
        return cast(dg.AssetCheckEvaluation, evaluation)

    return run


@pytest.fixture
def unreachable(kafka_io_manager: KafkaIOManager) -> KafkaIOManager:
    """A KafkaIOManager whose brokers are away: nobody listens on that port."""
    away = KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_s=1)
    return KafkaIOManager(source=KafkaSource(connection=away), spark=kafka_io_manager.spark)


def numbers(evaluation: dg.AssetCheckEvaluation) -> dict[str, Any]:
    """The metadata as plain values, by keys without kpipe/."""
    return plain_metadata(evaluation.metadata)


def rows(evaluation: dg.AssetCheckEvaluation) -> dict[str, dict[str, Any]]:
    """The table of a check over several partitions, by partition."""
    table: Any = evaluation.metadata["kpipe/by_partition"].value
    return {str(record.data["partition"]).rpartition("/")[2]: dict(record.data) for record in table.records}
