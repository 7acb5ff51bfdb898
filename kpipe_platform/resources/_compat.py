"""The private interfaces of Dagster that kpipe uses because Dagster 1.13 has no public equivalent.

No other module of the package imports ``dagster._...``. ``kpipe_platform_tests/resources/test_compat.py`` tests the
behavior that kpipe relies on, and fails first when a Dagster upgrade changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._config.pythonic_config import PartialResource
from dagster._core.definitions.reconstruct import repository_def_from_target_def
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as OBSERVATION_IS_LOGGED
from dagster._core.definitions.utils import NoValueSentinel
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.execution.plan.outputs import StepOutputHandle
from dagster._core.instance.ref import InstanceRef
from dagster._core.launcher import CheckRunHealthResult, WorkerStatus
from dagster._core.storage.dagster_run import ACTIVE_RUN_STATUSES, IN_PROGRESS_RUN_STATUSES, NOT_FINISHED_STATUSES
from dagster._core.storage.db_io_manager import DbIOManager
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    GRPC_INFO_TAG,
    PARTITION_NAME_TAG,
    RUN_KEY_TAG,
)
from dagster._core.workspace.autodiscovery import loadable_targets_from_python_module
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster_shared.check import CheckError

__all__ = [
    "ACTIVE_RUN_STATUSES",
    "ASSET_PARTITION_RANGE_END_TAG",
    "ASSET_PARTITION_RANGE_START_TAG",
    "GRPC_INFO_TAG",
    "IN_PROGRESS_RUN_STATUSES",
    "NOT_FINISHED_STATUSES",
    "OBSERVATION_IS_LOGGED",
    "PARTITION_NAME_TAG",
    "RUN_KEY_TAG",
    "CheckRunHealthResult",
    "DbIOManager",
    "InstanceRef",
    "NoValueSentinel",
    "PartialResource",
    "WorkerStatus",
    "code_server_runs",
    "io_manager_of_output",
    "repository_of_module",
    "repository_of_op",
]


def code_server_runs(server: Mapping[str, Any], run_id: str, timeout_s: int) -> bool | None:
    """Query whether a code server still has a process for a run that it started.

    Args:
        server: Value of the run's tag ``GRPC_INFO_TAG``: host, and port or socket.
        run_id: The run.
        timeout_s: Timeout of the query, seconds.

    Returns:
        Whether the process exists; None if the server does not respond.
    """
    client = DagsterGrpcClient(
        port=server.get("port"), socket=server.get("socket"), host=server["host"], use_ssl=bool(server.get("use_ssl"))
    )
    try:
        answer = client.can_cancel_execution(CanCancelExecutionRequest(run_id=run_id), timeout=timeout_s)
    except DagsterUserCodeUnreachableError:
        return None
    return dg.deserialize_value(answer, CanCancelExecutionResult).can_cancel


def io_manager_of_output(step_context: dg.StepExecutionContext, output: str) -> Any:
    """Return the IO manager that stores an output of a step."""
    return step_context.get_io_manager(StepOutputHandle(step_context.step.key, output))


def repository_of_op(context: dg.OpExecutionContext) -> dg.RepositoryDefinition | None:
    """Return the definitions of an op's code location; None if the job was not loaded from one, as in unit tests."""
    try:
        return context.repository_def
    except CheckError:
        return None


def repository_of_module(module: str) -> dg.RepositoryDefinition | None:
    """Return the definitions of a Python module, found as by ``dagster dev -m``.

    Raises:
        Exception: Any error of the import, or the module has no definitions.
    """
    targets = loadable_targets_from_python_module(module, working_directory=str(Path.cwd()))
    return repository_def_from_target_def(targets[0].target_definition)
