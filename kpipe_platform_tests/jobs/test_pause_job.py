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
        pause_job().execute_in_process(config(partitions=[1, 2], reason="broken"), instance=instance)
        found = paused(instance, "kpipe.a", "orders")
        assert {number: pause.reason for number, pause in found.items()} == {1: "broken", 2: "broken"}
        pause_job().execute_in_process(config(partitions=[1], action="resume"), instance=instance)
        assert list(paused(instance, "kpipe.a", "orders")) == [2]


def test_no_partition_is_refused() -> None:
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(ConfigError, match="no partition"):
        pause_job().execute_in_process(config(partitions=[]), instance=instance)
