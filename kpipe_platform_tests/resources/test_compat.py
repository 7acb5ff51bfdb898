"""What ``resources/_compat.py`` relies on in Dagster's private interfaces. Fails first when Dagster is upgraded."""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import kpipe_platform
from kpipe_platform.jvm.ports import LOOPBACK, free_port
from kpipe_platform.resources import _compat

PACKAGE = Path(kpipe_platform.__file__).parent

# After an upgrade: run this file, read the release notes for what _compat.py imports, and write the new version here.
DAGSTER = "1.13.27"


def test_the_contracts_below_were_checked_with_this_version_of_dagster() -> None:
    assert importlib.metadata.version("dagster") == DAGSTER


def private_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.startswith("dagster") and "._" in name)


def test_no_other_module_imports_what_is_private() -> None:
    found = {str(path.relative_to(PACKAGE)): list(private_imports(path)) for path in PACKAGE.rglob("*.py")}
    assert [path for path, names in found.items() if names] == ["resources/_compat.py"]


def test_tags_are_those_that_runs_in_storage_have() -> None:
    assert _compat.PARTITION_NAME_TAG == "dagster/partition"
    assert _compat.ASSET_PARTITION_RANGE_START_TAG == "dagster/asset_partition_range_start"
    assert _compat.ASSET_PARTITION_RANGE_END_TAG == "dagster/asset_partition_range_end"
    assert _compat.RUN_KEY_TAG == "dagster/run_key"
    assert _compat.GRPC_INFO_TAG == ".dagster/grpc_info"


def test_every_status_is_of_a_run_that_is_finished_or_not() -> None:
    finished = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
    assert set(_compat.NOT_FINISHED_STATUSES) == set(dg.DagsterRunStatus) - finished - {dg.DagsterRunStatus.MANAGED}
    active = {dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING}
    assert set(_compat.ACTIVE_RUN_STATUSES) == active
    assert set(_compat.IN_PROGRESS_RUN_STATUSES) == active | {dg.DagsterRunStatus.SUSPENDED}


class Keeping(dg.IOManager):
    """Keeps what it is given, and which IO manager Dagster finds for its output."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.found: list[Any] = []

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        self.stored.append(obj)
        self.found.append(_compat.io_manager_of_output(context.step_context, context.name))

    def load_input(self, context: dg.InputContext) -> None: ...


def test_the_io_manager_of_an_output_is_found() -> None:
    @dg.asset
    def one() -> int:
        return 1

    manager = Keeping()
    assert dg.materialize([one], resources={"io_manager": manager}).success
    assert manager.stored == [1]
    assert manager.found == [manager]


def test_a_result_without_a_value_is_stored_as_the_sentinel() -> None:
    @dg.asset(dagster_type=dg.DagsterType(lambda _context, _value: True, "Rows"))
    def one() -> Any:
        return dg.MaterializeResult(metadata={"rows": 1})

    manager = Keeping()
    assert dg.materialize([one], resources={"io_manager": manager}).success
    assert manager.stored == [_compat.NoValueSentinel]


@pytest.mark.parametrize(("metadata", "observations"), [({}, 1), ({_compat.OBSERVATION_IS_LOGGED: True}, 0)])
def test_an_output_that_says_so_is_no_observation(metadata: dict[str, Any], observations: int) -> None:
    @dg.multi_observable_source_asset(specs=[dg.AssetSpec("topic")])
    def topic() -> dg.Output[None]:
        return dg.Output(None, metadata=metadata)

    result = dg.materialize([topic], selection=[topic])
    assert len(result.get_asset_observation_events()) == observations
    assert result.output_for_node("topic", "topic") is None


def test_an_instance_opens_again_from_its_reference() -> None:
    with dg.instance_for_test() as instance:
        reference = instance.get_ref()
        assert isinstance(reference, _compat.InstanceRef)
        with dg.DagsterInstance.from_ref(reference) as other:
            assert other.root_directory == instance.root_directory


def test_a_code_server_that_is_away_is_told_from_one_that_answers() -> None:
    assert _compat.code_server_runs({"host": LOOPBACK, "port": free_port()}, "a-run", timeout_s=2) is None


def test_run_monitoring_takes_what_the_launcher_answers() -> None:
    answer = _compat.CheckRunHealthResult(_compat.WorkerStatus.NOT_FOUND, "why")
    assert (answer.status, answer.msg) == (_compat.WorkerStatus.NOT_FOUND, "why")
    assert "check_run_worker_health" in dir(dg.DefaultRunLauncher)


def test_the_io_managers_of_databases_have_one_base() -> None:
    assert issubclass(_compat.DbIOManager, dg.IOManager)


def test_an_op_knows_the_definitions_of_its_code_location_and_a_module_those_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dg.RepositoryDefinition | None] = []

    @dg.op
    def looks(context) -> None:  # type: ignore[no-untyped-def]  # Dagster refuses a postponed annotation
        found.append(_compat.repository_of_op(context))

    @dg.job
    def looking() -> None:
        looks()

    assert looking.execute_in_process().success
    assert found == [None]

    (tmp_path / "location_of_a_test.py").write_text(
        "import dagster as dg\n@dg.asset\ndef orders(): ...\ndefs = dg.Definitions([orders])\n"
    )
    monkeypatch.chdir(tmp_path)
    repository = _compat.repository_of_module("location_of_a_test")
    assert repository is not None
    assert list(repository.assets_defs_by_key) == [dg.AssetKey("orders")]
