"""The Dagster instance stores pauses: across restarts, and for each asset separately."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg

from kpipe_platform.partitions.pauses import Pause, pause, paused, resume, take_over

KEY = dg.AssetKey(["shop", "orders"])


def test_a_pause_survives_a_restart(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert pause(instance, KEY, 3, "broken", clock=lambda: 5.0)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert paused(instance, KEY) == {3: Pause(5000, "broken")}


def test_pausing_twice_keeps_the_first_time_and_reason() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert pause(instance, KEY, 3, "first", clock=lambda: 1.0)
        assert not pause(instance, KEY, 3, "second", clock=lambda: 2.0)
        assert paused(instance, KEY) == {3: Pause(1000, "first")}
        assert resume(instance, KEY, 3)
        assert not resume(instance, KEY, 3)
        assert paused(instance, KEY) == {}


def test_pauses_and_resumes_at_once_all_hold(tmp_path: Path) -> None:
    """Two operators, or an operator and the job in the UI, each with an instance object of their own."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as one, dg.DagsterInstance.from_ref(one.get_ref()) as other:
        for number in range(10, 20):
            pause(one, KEY, number)
        with ThreadPoolExecutor(2) as threads:
            together = threading.Barrier(2, timeout=30)

            def change(instance: dg.DagsterInstance, paused_from: int, resumed_from: int) -> None:
                for n in range(5):
                    together.wait()
                    pause(instance, KEY, paused_from + n, f"reason {n}")
                    resume(instance, KEY, resumed_from + n)

            for done in [threads.submit(change, one, 0, 10), threads.submit(change, other, 5, 15)]:
                done.result(60)
        found = paused(one, KEY)
    assert {number: each.reason for number, each in found.items()} == {n: f"reason {n % 5}" for n in range(10)}


def test_two_who_pause_one_partition_at_once_pause_it(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as one, dg.DagsterInstance.from_ref(one.get_ref()) as other:
        together = threading.Barrier(2, timeout=30)

        def change(instance: dg.DagsterInstance, reason: str) -> None:
            for n in range(10):
                together.wait()
                pause(instance, KEY, n, reason)

        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(change, one, "first"), threads.submit(change, other, "second")]:
                done.result(60)
        found = paused(one, KEY)
    assert list(found) == list(range(10))
    assert {each.reason for each in found.values()} <= {"first", "second"}


def test_the_pauses_of_each_asset_are_separate() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        pause(instance, KEY, 0)
        assert paused(instance, dg.AssetKey("orders")) == {}
        assert paused(instance, dg.AssetKey("shop/orders")) == {}


def store_as_version_0_1(instance: dg.DagsterInstance, group: str, topic: str, partition: int, reason: str) -> None:
    name = f"kpipe/paused/{group}/{topic}"
    stored = json.dumps({"since_ms": 1000, "reason": reason})
    instance.daemon_cursor_storage.set_cursor_values({f"{name}/{partition}": stored})
    instance.add_dynamic_partitions(name, [str(partition)])


def test_a_pause_of_a_group_and_topic_moves_to_the_asset() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for topic, partition in (("orders", 1), ("payments", 2), ("payments", 3)):
            store_as_version_0_1(instance, "kpipe.shop.orders", topic, partition, "then")
        store_as_version_0_1(instance, "kpipe.other", "orders", 4, "another asset's")
        pause(instance, KEY, 3, "now", clock=lambda: 2.0)
        for _ in range(2):
            take_over(instance, KEY, "kpipe.shop.orders", ["orders", "payments"])
            expected = {1: Pause(1000, "then"), 2: Pause(1000, "then"), 3: Pause(2000, "now")}
            assert paused(instance, KEY) == expected
        # It moved, so that a resumed partition is not paused again.
        assert resume(instance, KEY, 1)
        take_over(instance, KEY, "kpipe.shop.orders", ["orders", "payments"])
        assert list(paused(instance, KEY)) == [2, 3]
