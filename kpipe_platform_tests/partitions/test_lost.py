"""Runs whose process is gone: found, told, released; with a real code server, its runs, and Dagster's monitoring."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import GrpcServerTarget
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration
from dagster._grpc.types import CanCancelExecutionResult
from dagster._serdes import serialize_value
from dagster_graphql.test.utils import execute_dagster_graphql

from kpipe_platform.errors import ConfigError
from kpipe_platform.jvm.ports import LOOPBACK, free_port
from kpipe_platform.jvm.process import ManagedProcess
from kpipe_platform.partitions import lost
from kpipe_platform.partitions.lost import LostRun, Process, lost_runs, process_of, release
from kpipe_platform.resources import _compat
from kpipe_platform_tests.processes import wait_until

SETTINGS = """\
run_launcher:
  module: kpipe_platform.partitions.launcher
  class: KafkaRunLauncher
run_monitoring:
  enabled: true
# Without a daemon nobody would take a run out of a queue.
run_coordinator:
  module: dagster.core.run_coordinator
  class: DefaultRunCoordinator
"""
DEFINITIONS = """
import time
import dagster as dg

@dg.op
def wait():
    time.sleep(600)

@dg.job
def waits():
    wait()

defs = dg.Definitions(jobs=[waits])
"""
LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message stack }
  }
}
"""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(SETTINGS, encoding="utf-8")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def started(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, *, port: int | None = None) -> str:
    """A run that was started by the code server of a port, and has logged something just now."""

    @dg.job
    def nothing() -> None: ...

    tags = {} if port is None else {GRPC_INFO_TAG: json.dumps({"host": LOOPBACK, "port": port})}
    run = instance.create_run_for_job(nothing, status=status, tags=tags)
    instance.report_engine_event("alive", run)
    return run.run_id


def later(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


def test_a_run_is_lost_where_it_is_silent_and_its_server_does_not_answer(instance: dg.DagsterInstance) -> None:
    run = started(instance, dg.DagsterRunStatus.STARTED, port=free_port())
    others = [
        # Nobody can be asked about this one.
        started(instance, dg.DagsterRunStatus.STARTED),
        # Dagster's monitoring has timeouts of its own for these.
        started(instance, dg.DagsterRunStatus.CANCELING, port=free_port()),
        started(instance, dg.DagsterRunStatus.STARTING, port=free_port()),
    ]
    assert lost_runs(instance, []) == []
    assert lost_runs(instance, [run, *others]) == []
    assert lost_runs(instance, others, clock=later(3600)) == []
    (found,) = lost_runs(instance, [run, *others], clock=later(3600))
    assert (found.run_id, found.process) == (run, Process.UNREACHABLE)
    assert 3600 <= found.silent_s < 3700
    assert f"kpipe partitions release {run[:8]}" in str(found)


def test_a_run_that_is_there_is_not_lost_however_silent(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(instance, dg.DagsterRunStatus.STARTED, port=free_port())
    monkeypatch.setattr(lost, "process_of", lambda _: Process.RUNS)
    assert lost_runs(instance, [run], clock=later(3600)) == []
    with pytest.raises(ConfigError, match="terminate it in the UI"):
        release(instance, run, force=True)


@pytest.mark.parametrize(
    ("place", "can_cancel", "process"),
    [
        ({"port": 4000}, True, Process.RUNS),
        ({"port": 4000}, False, Process.GONE),
        ({"socket": "/tmp/s"}, True, Process.RUNS),
        # The proxy of `dagster dev` after a reload: the run goes on in the server of before.
        ({"socket": "/tmp/s"}, False, Process.UNKNOWN),
    ],
)
def test_what_a_code_server_says(
    place: dict[str, Any], can_cancel: bool, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def __init__(self, **_: Any) -> None: ...

        def can_cancel_execution(self, *_: Any, **__: Any) -> str:
            return serialize_value(CanCancelExecutionResult(can_cancel=can_cancel))

    monkeypatch.setattr(_compat, "DagsterGrpcClient", Client)
    tags = {GRPC_INFO_TAG: json.dumps({"host": LOOPBACK, **place})}
    assert process_of(dg.DagsterRun("job", tags=tags)) is process


def test_a_release_names_one_run_that_may_be_gone(instance: dg.DagsterInstance) -> None:
    gone = started(instance, dg.DagsterRunStatus.STARTED, port=free_port())
    with pytest.raises(ConfigError, match="no started run has an id"):
        release(instance, "0" * 40)
    assert release(instance, gone[:8]) == gone
    assert instance.get_run_by_id(gone).status is dg.DagsterRunStatus.FAILURE  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="no started run has an id"):
        release(instance, gone)
    unknown = [started(instance, dg.DagsterRunStatus.STARTED) for _ in range(2)]
    with pytest.raises(ConfigError, match="2 started runs have an id"):
        release(instance, "")
    with pytest.raises(ConfigError, match="--force"):
        release(instance, unknown[0])
    assert release(instance, unknown[0], force=True) == unknown[0]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_that_died_with_its_host_fails_once_the_code_server_is_back(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "dagster", "api", "grpc", "-h", LOOPBACK, "-p", str(port)]
    server = ManagedProcess([*command, "-f", tmp_path / "definitions.py"], log_path=tmp_path / "server.log")
    server.start()
    try:
        target = GrpcServerTarget(host=LOOPBACK, port=port, socket=None, location_name="code")
        run = None
        wait_until(lambda: "Started Dagster code server" in server.log_tail(), "the code server", 120)
        with WorkspaceProcessContext(instance, target) as context:
            run = _launched(context)
            wait_until(lambda: _status(instance, run) is dg.DagsterRunStatus.STARTED, "the run", 120)
            assert _process(instance, run) is Process.RUNS
            _monitor(context)
            assert _status(instance, run) is dg.DagsterRunStatus.STARTED
            # With all that it has started, as when a host goes down.
            server.kill()
            assert _process(instance, run) is Process.UNREACHABLE
            (found,) = lost_runs(instance, [run], clock=later(3600))
            assert isinstance(found, LostRun)
            _monitor(context)
            assert _status(instance, run) is dg.DagsterRunStatus.STARTED
            server.start()
            wait_until(lambda: _process(instance, run) is not Process.UNREACHABLE, "the code server", 120)
            assert _process(instance, run) is Process.GONE
            _monitor(context)
            assert _status(instance, run) is dg.DagsterRunStatus.FAILURE
    finally:
        server.stop()


def _launched(context: WorkspaceProcessContext) -> str:
    selector = {"repositoryLocationName": "code", "repositoryName": "__repository__", "pipelineName": "waits"}
    params = {"selector": selector, "mode": "default", "runConfigData": {}}
    answer = execute_dagster_graphql(context.create_request_context(), LAUNCH, {"params": params})
    found = answer.data["launchPipelineExecution"]
    assert found["__typename"] == "LaunchRunSuccess", found
    return str(found["run"]["runId"])


def _status(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def _process(instance: dg.DagsterInstance, run_id: str) -> Process:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return process_of(run)


def _monitor(context: WorkspaceProcessContext) -> None:
    errors = list(execute_run_monitoring_iteration(context, logging.getLogger("kpipe_platform_tests.lost")))
    assert errors == [None]
