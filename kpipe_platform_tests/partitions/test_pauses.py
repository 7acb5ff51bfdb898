"""Pauses are kept by the Dagster instance: across restarts, and for each group by itself."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from kpipe_platform.partitions.pauses import Pause, pause, paused, resume


def test_a_pause_survives_a_restart(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert pause(instance, "kpipe.a", "orders", 3, "broken", clock=lambda: 5.0)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert paused(instance, "kpipe.a", "orders") == {3: Pause(5000, "broken")}


def test_pausing_twice_keeps_the_first_time_and_reason() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert pause(instance, "kpipe.a", "orders", 3, "first", clock=lambda: 1.0)
        assert not pause(instance, "kpipe.a", "orders", 3, "second", clock=lambda: 2.0)
        assert paused(instance, "kpipe.a", "orders") == {3: Pause(1000, "first")}
        assert resume(instance, "kpipe.a", "orders", 3)
        assert not resume(instance, "kpipe.a", "orders", 3)
        assert paused(instance, "kpipe.a", "orders") == {}


def test_groups_and_topics_are_apart() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        pause(instance, "kpipe.a", "orders", 0)
        assert paused(instance, "kpipe.b", "orders") == {}
        assert paused(instance, "kpipe.a", "other") == {}
