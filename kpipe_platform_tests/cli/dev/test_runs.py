"""What `kpipe dev` says, after Ctrl-C, of the runs of a real Dagster instance."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from kpipe_platform.cli.dev.command import dagster_yaml
from kpipe_platform.cli.dev.runs import Awaited


def test_runs_are_named_awaited_and_finished_or_ended(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(dagster_yaml(cpus=2), encoding="utf-8")

    @dg.asset
    def enriched() -> None: ...

    job = dg.Definitions(assets=[enriched]).resolve_implicit_global_asset_job_def()
    said: list[str] = []
    awaited = Awaited(tmp_path, 3.0, said.append)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        started = instance.create_run_for_job(
            job,
            status=dg.DagsterRunStatus.STARTED,
            asset_selection={enriched.key},
            tags={"dagster/partition": "0"},
        )
        line = f"enriched partition 0 (run {started.run_id[:8]})"
        assert awaited.runs() == awaited.runs() == (line,)
        assert said == [
            "No further run is started. Waiting up to 3 s for 1 run at work (Ctrl-C again: end it now)",
            f"  {line}",
        ]
        said.clear()
        awaited.say_ending(late=True)
        awaited.say_ending(late=False)
        ending = "Ending 1 run at work: Spark jobs are canceled, transactions aborted, and offsets stay where they are"
        assert said == [
            f"Not finished within 3 s. {ending} (Ctrl-C again: kill)",
            f"{ending} (Ctrl-C again: kill)",
        ]
        said.clear()
        instance.report_run_canceled(started)
        assert awaited.runs() == ()
        assert said == ["The runs are finished. Stopping Dagster and Kafka"]

    said.clear()
    assert Awaited(tmp_path, 3.0, said.append).runs() == ()
    assert said[-1] == "Stopping Dagster and Kafka: no run is at work"
