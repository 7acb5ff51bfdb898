"""Pausing by a job in the UI."""

from __future__ import annotations

import dagster as dg
import pytest

from kpipe_platform.errors import ConfigError
from kpipe_platform.jobs import PauseConfig, pause_job
from kpipe_platform.partitions.pauses import paused


def config(**values: object) -> dg.RunConfig:
    return dg.RunConfig(ops={"pause": PauseConfig(group="kpipe.a", topic="orders", **values)})  # type: ignore[arg-type]


def test_pause_and_resume() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        pause_job().execute_in_process(config(partitions=[1, 2], reason="broken", new_group=True), instance=instance)
        found = paused(instance, "kpipe.a", "orders")
        assert {number: pause.reason for number, pause in found.items()} == {1: "broken", 2: "broken"}
        pause_job().execute_in_process(config(partitions=[1], action="resume"), instance=instance)
        assert list(paused(instance, "kpipe.a", "orders")) == [2]


def test_no_partition_is_refused() -> None:
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(ConfigError, match="no partition"):
        pause_job().execute_in_process(config(partitions=[]), instance=instance)


def test_a_mistyped_group_is_refused() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        ranges = [{"topic": "orders", "partition": 0, "start": 0, "end": 5, "topic_id": "id"}]
        metadata = {"kpipe/consumer_group": "kpipe.a", "kpipe/ranges": dg.MetadataValue.json(ranges)}
        instance.report_runless_asset_event(dg.AssetMaterialization("a", metadata=metadata))
        for changes in ({"group": "kpip.a"}, {"group": "kpipe.b"}, {"topic": "order"}):
            wrong = PauseConfig(**{"group": "kpipe.a", "topic": "orders", "partitions": [1], **changes})  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="no run and no materialisation"):
                pause_job().execute_in_process(dg.RunConfig(ops={"pause": wrong}), instance=instance)
        pause_job().execute_in_process(config(partitions=[1]), instance=instance)
        assert list(paused(instance, "kpipe.a", "orders")) == [1]
