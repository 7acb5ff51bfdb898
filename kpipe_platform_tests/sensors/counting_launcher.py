"""A run launcher for tests of Dagster's queue: a run is at work until the test ends it, without a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.launcher.base import LaunchRunContext, RunLauncher
from dagster._serdes import ConfigurableClass, ConfigurableClassData


class CountingLauncher(RunLauncher[dg.DagsterInstance], ConfigurableClass):
    """Reports a run as started, and no more."""

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        self._inst_data = inst_data
        super().__init__()

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> CountingLauncher:
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        run = context.dagster_run
        event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name, message="started by the test")
        self._instance.report_dagster_event(event, run.run_id)

    def terminate(self, run_id: str) -> bool:
        raise NotImplementedError
