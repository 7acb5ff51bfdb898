"""Pauses are kept by the Dagster instance: across restarts, and for each group by itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
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


def test_pauses_and_resumes_at_once_all_hold(tmp_path: Path) -> None:
    """Two operators, or an operator and the job in the UI, each with an instance object of their own."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as one, dg.DagsterInstance.from_ref(one.get_ref()) as other:
        for number in range(10, 20):
            pause(one, "kpipe.a", "orders", number)
        with ThreadPoolExecutor(2) as threads:
            together = threading.Barrier(2, timeout=30)

            def change(instance: dg.DagsterInstance, paused_from: int, resumed_from: int) -> None:
                for n in range(5):
                    together.wait()
                    pause(instance, "kpipe.a", "orders", paused_from + n, f"reason {n}")
                    resume(instance, "kpipe.a", "orders", resumed_from + n)

            for done in [threads.submit(change, one, 0, 10), threads.submit(change, other, 5, 15)]:
                done.result(60)
        found = paused(one, "kpipe.a", "orders")
    assert {number: each.reason for number, each in found.items()} == {n: f"reason {n % 5}" for n in range(10)}


def test_two_who_pause_one_partition_at_once_pause_it(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as one, dg.DagsterInstance.from_ref(one.get_ref()) as other:
        together = threading.Barrier(2, timeout=30)

        def change(instance: dg.DagsterInstance, reason: str) -> None:
            for n in range(10):
                together.wait()
                pause(instance, "kpipe.a", "orders", n, reason)

        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(change, one, "first"), threads.submit(change, other, "second")]:
                done.result(60)
        found = paused(one, "kpipe.a", "orders")
    assert list(found) == list(range(10))
    assert {each.reason for each in found.values()} <= {"first", "second"}


def test_groups_and_topics_are_apart() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        pause(instance, "kpipe.a", "orders", 0)
        assert paused(instance, "kpipe.b", "orders") == {}
        assert paused(instance, "kpipe.a", "other") == {}
