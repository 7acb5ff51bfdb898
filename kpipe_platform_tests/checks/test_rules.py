"""Rules as asset checks, over materializations as the storage holds them: no broker, no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pytest

from kpipe_platform import (
    JsonCodec,
    KafkaConnection,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    SparkEngine,
    kafka_asset,
    kafka_topic_asset,
    rule_checks,
)

ORDERS = kafka_topic_asset("orders", value_codec=JsonCodec("id BIGINT NOT NULL"), partitions=2)


@kafka_asset(source=ORDERS, topic=KafkaTopic("checked", value_codec=JsonCodec()))
def checked(orders):  # type: ignore[no-untyped-def]
    return orders


def materialized(read: int, partition: str = "0", **failed: int) -> dg.AssetMaterialization:
    metadata: dict[str, Any] = {
        "kpipe/records_read": dg.MetadataValue.int(read),
        "kpipe/consumer_group": "kpipe.checked",
        "kpipe/ranges": dg.MetadataValue.json([]),
    }
    if failed:
        rows = [{"rule": r, "action": "skip", "checked": read, "failed": count} for r, count in failed.items()]
        metadata["kpipe/rules"] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows])
    return dg.AssetMaterialization(checked.key, partition=partition, metadata=metadata)


def evaluated(events: Sequence[dg.AssetMaterialization], rule: str, partition: str = "0") -> dg.AssetCheckEvaluation:
    [check] = rule_checks(checked, rule)
    away = KafkaSource(connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    defs = dg.Definitions(
        assets=[ORDERS, checked],
        asset_checks=[check],
        resources={"kafka_io_manager": KafkaIOManager(source=away, spark=SparkEngine())},
        jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.checks(check))],
    )
    with dg.DagsterInstance.ephemeral() as instance:
        for event in events:
            instance.report_runless_asset_event(event)
        done = defs.resolve_job_def("checks").execute_in_process(
            instance=instance, tags={"dagster/partition": partition}
        )
        [found] = done.get_asset_check_evaluations()
    assert isinstance(found, dg.AssetCheckEvaluation)
    return found


KNOWN: Mapping[str, int] = {"positive": 0, "short": 3}
BY_HAND = dg.AssetMaterialization(checked.key, partition="0")
"""What "Report materialization" in the UI leaves."""


@pytest.mark.parametrize(
    ("events", "passed"),
    [
        pytest.param([materialized(9, **KNOWN)], False, id="in a slice that others were looked at"),
        pytest.param([materialized(9, **KNOWN), materialized(0)], False, id="also after an empty slice"),
        pytest.param([materialized(9, "1", **KNOWN), materialized(0)], False, id="and in an empty partition"),
        pytest.param([materialized(9)], False, id="in a stage without rules"),
        pytest.param([materialized(9, **KNOWN), *[BY_HAND] * 100], False, id="also behind what was reported by hand"),
        pytest.param([materialized(0)], True, id="before the first record nobody knows"),
        pytest.param([], True, id="nor before the first run"),
    ],
)
def test_a_misspelt_rule_is_not_green_for_ever(events: list[dg.AssetMaterialization], passed: bool) -> None:
    found = evaluated(events, "misspelt")
    assert found.passed is passed
    if not passed:
        assert found.severity is dg.AssetCheckSeverity.ERROR
        assert "the stage has no rule 'misspelt'" in (found.description or "")
        assert "How to fix" in (found.description or "")


@pytest.mark.parametrize(
    ("events", "rule", "passed"),
    [
        pytest.param([materialized(9, **KNOWN)], "positive", True, id="it held"),
        pytest.param([materialized(9, **KNOWN)], "short", False, id="it failed"),
        pytest.param([materialized(9, **KNOWN), materialized(0)], "short", True, id="an empty slice broke no rule"),
        pytest.param([materialized(9, **KNOWN), BY_HAND], "short", False, id="one reported by hand looked at nothing"),
        pytest.param([materialized(9, "1", **KNOWN)], "short", True, id="the other partition's slice"),
        pytest.param(
            [materialized(9, **KNOWN), materialized(9, positive=0)], "short", True, id="the stage left it out once"
        ),
    ],
)
def test_a_rule_that_the_stage_has_looked_at(events: list[dg.AssetMaterialization], rule: str, passed: bool) -> None:
    assert evaluated(events, rule).passed is passed
