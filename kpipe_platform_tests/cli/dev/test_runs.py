"""What `kpipe dev` says, after Ctrl-C, of the runs of a real Dagster instance."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from kpipe_platform.cli.dev.command import dagster_yaml
from kpipe_platform.cli.dev.runs import ActiveRuns


def test_runs_are_named_awaited_and_finished_or_ended(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(dagster_yaml(cpus=2), encoding="utf-8")

    @dg.asset
    def enriched() -> None: ...

    job = dg.Definitions(assets=[enriched]).resolve_implicit_global_asset_job_def()
    said: list[str] = []
    active = ActiveRuns(tmp_path, 3.0, said.append)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        started = instance.create_run_for_job(
            job,
            status=dg.DagsterRunStatus.STARTED,
            asset_selection={enriched.key},
            tags={"dagster/partition": "0"},
        )
        line = f"enriched partition 0 (run {started.run_id[:8]})"
        assert active.runs() == active.runs() == (line,)
        assert said == [
            "No new runs will start. Waiting up to 3 s for 1 active run (press Ctrl-C again to cancel it)",
            f"  {line}",
        ]
        said.clear()
        active.report_canceling(late=True)
        active.report_canceling(late=False)
        ending = "Canceling 1 active run: Spark jobs are canceled, transactions are aborted, and offsets do not move"
        assert said == [
            f"Not finished within 3 s. {ending} (press Ctrl-C again to kill)",
            f"{ending} (press Ctrl-C again to kill)",
        ]
        said.clear()
        instance.report_run_canceled(started)
        assert active.runs() == ()
        assert said == ["All runs have finished. Stopping Dagster and Kafka"]

    said.clear()
    assert ActiveRuns(tmp_path, 3.0, said.append).runs() == ()
    assert said[-1] == "No active runs. Stopping Dagster and Kafka"
