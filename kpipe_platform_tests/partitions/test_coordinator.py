"""What the run queue is told of a run. The queue itself: sensors/test_run_queue.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.run_coordinator.base import SubmitRunContext
from dagster._core.storage.dagster_run import RunOpConcurrency

from kpipe_platform import JsonCodec, KafkaTopic, kafka_asset, kafka_pool, kafka_topic_asset
from kpipe_platform.cli.dev.command import dagster_yaml
from kpipe_platform.partitions.coordinator import SLOT, slot_of

PAGE = Path(__file__).parents[2] / "docs/guides/concurrency.md"
ORDERS = kafka_topic_asset("orders", value_codec=JsonCodec("id BIGINT NOT NULL"))


def run_of(pools: set[str], **tags: str) -> dg.DagsterRun:
    """A run as Dagster records it."""
    names = {f"dagster/{name}": value for name, value in tags.items()}
    concurrency = RunOpConcurrency(root_key_counts={}, has_unconstrained_root_nodes=True, all_pools=pools)
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("test"), "test")
    return dg.DagsterRun(
        "job",
        tags=names,
        run_op_concurrency=concurrency if pools else None,
        remote_job_origin=RemoteJobOrigin(repository, "job"),
    )


@pytest.mark.parametrize(
    ("pools", "tags", "slot"),
    [
        ({"kpipe.a"}, {"partition": "3"}, "kpipe.a/3"),
        ({"kpipe.a", "kpipe.b", "registry"}, {"partition": "3"}, "kpipe.a+kpipe.b/3"),
        ({"kpipe.a"}, {"asset_partition_range_start": "0", "asset_partition_range_end": "4"}, "kpipe.a/0-4"),
        ({"kpipe.a"}, {"asset_partition_range_start": "4", "asset_partition_range_end": "4"}, "kpipe.a/4"),
        ({"kpipe.a"}, {}, "kpipe.a/all"),
        ({"registry"}, {"partition": "3"}, None),
        (set(), {"partition": "3"}, None),
    ],
)
def test_the_slot_names_assets_and_partition(pools: set[str], tags: dict[str, str], slot: str | None) -> None:
    assert slot_of(run_of(pools, **tags)) == slot


def test_the_slot_of_many_assets_can_be_indexed_and_is_their_own() -> None:
    """PostgreSQL makes no run with a tag of more than some 2,600 bytes."""
    many = {f"kpipe.shop.an_asset_with_a_long_name_{n}" for n in range(200)}
    slots = {slot_of(run_of(many - without, partition="3")) for without in ({next(iter(many))}, set[str]())}
    assert len(slots) == 2
    assert all(slot is not None and len(slot) <= 200 for slot in slots)


@pytest.mark.parametrize(
    ("how", "pool"),
    [
        ({}, "kpipe.priced"),
        ({"key_prefix": "shop"}, "kpipe.shop.priced"),
        ({"key_prefix": ["shop", "eu"], "name": "other"}, "kpipe.shop.eu.other"),
        ({"pool": "registry"}, "registry"),
    ],
)
def test_an_asset_has_a_pool_of_its_own(how: dict[str, Any], pool: str) -> None:
    def priced(orders):  # type: ignore[no-untyped-def]
        return orders

    made = kafka_asset(source=ORDERS, topic=KafkaTopic("priced", value_codec=JsonCodec()), **how)(priced)

    assert made.op.pool == pool
    assert "pool" in how or kafka_pool(made.key) == pool


def test_every_run_that_is_queued_is_tagged_with_its_slot(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(dagster_yaml(2), encoding="utf-8")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        by_hand, by_sensor = run_of({"kpipe.a"}, partition="3"), run_of({"kpipe.a"}, partition="3", run_key="a#1")
        other = run_of({"registry"}, partition="3")
        for run in (by_hand, by_sensor, other):
            instance.add_run(run)
            instance.run_coordinator.submit_run(SubmitRunContext(run, workspace=None))  # type: ignore[arg-type]
        queued = {run.run_id: run for run in instance.get_runs()}
        assert {run.status for run in queued.values()} == {dg.DagsterRunStatus.QUEUED}
        assert {queued[run.run_id].tags[SLOT] for run in (by_hand, by_sensor)} == {"kpipe.a/3"}
        assert SLOT not in queued[other.run_id].tags


def test_the_page_shows_the_settings_that_kpipe_dev_writes() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    written = yaml.safe_load(dagster_yaml(cpus=2))
    shown = yaml.safe_load(text)
    assert shown == {name: written[name] for name in shown}
