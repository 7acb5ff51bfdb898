"""The two programs that docs/scaling.md takes figures from."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.instance.ref import InstanceRef

from benchmarks import coordinator
from benchmarks.coordinator import Worker
from benchmarks.dagster_events import volume
from kpipe_platform.testing.broker import EmbeddedBroker


@pytest.mark.broker
def test_transactions_are_counted_and_proved(kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    found = coordinator.measure(kafka_broker.bootstrap_servers, 2, 2, 0.5, Worker.transaction)
    assert found.per_s > 1
    assert 0 < found.p50_ms <= found.p95_ms
    # A record that is not there is noticed.
    monkeypatch.setattr(coordinator, "consume", lambda *_: [])
    with pytest.raises(RuntimeError, match="records were committed, and 0 are there"):
        coordinator.measure(kafka_broker.bootstrap_servers, 3, 1, 0.5, Worker.transaction)


def test_every_row_of_a_run_is_counted(tmp_path: Path) -> None:
    @dg.asset
    def noted() -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata={"text": "a" * 5_000})

    ref = InstanceRef.from_dir(str(tmp_path), overrides={"telemetry": {"enabled": False}})
    with dg.DagsterInstance.from_ref(ref) as instance:
        dg.materialize([noted], instance=instance)
        before = volume(tmp_path)
        run = dg.materialize([noted], instance=instance)
        found = volume(tmp_path) - before
        events = len(instance.all_logs(run.run_id))
    # Those of assets are in the index over all runs as well.
    assert events < found.rows <= 2 * events
    # So the metadata is there twice.
    assert 10_000 < found.event_bytes < 50_000
    assert found.disk_bytes > found.event_bytes
