"""The topics that sensors, checks and jobs find from an asset's inputs."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from kpipe_platform import RawCodec, dead_letter_asset, kafka_topic_asset, table_input
from kpipe_platform.assets.topics_read import read_modes, topics_read
from kpipe_platform.errors import ConfigError

ORDERS = kafka_topic_asset("orders", value_codec=RawCodec(), partitions=1)
CUSTOMERS = kafka_topic_asset("customers", value_codec=RawCodec(), partitions=1)
DEAD_LETTERS = dead_letter_asset(ORDERS)


def repository(*assets: dg.AssetsDefinition) -> dg.RepositoryDefinition:
    resources = {"kafka_io_manager": dg.InMemoryIOManager()}
    return dg.Definitions([ORDERS, CUSTOMERS, DEAD_LETTERS, *assets], resources=resources).get_repository_def()


def test_tables_and_dead_letters_are_not_read_by_slices() -> None:
    @dg.asset(ins={"customers": table_input()})
    def priced(orders: Any, customers: Any, orders_dead_letters: Any) -> None: ...

    modes = {key.to_user_string(): mode for key, mode in read_modes(priced).items()}
    assert modes == {"orders": "slice", "customers": "table", "orders_dead_letters": "slice"}
    assert topics_read(priced, repository(priced)) == ("orders",)


def test_an_asset_that_only_depends_on_a_topic_does_not_read_it() -> None:
    """A sensor would request its runs forever: they commit no offsets."""

    @dg.asset(deps=[ORDERS])
    def report() -> None: ...

    assert read_modes(report) == {}
    with pytest.raises(ConfigError, match="asset report does not read slices of a Kafka topic"):
        topics_read(report, repository(report))
