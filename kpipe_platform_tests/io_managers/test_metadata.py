"""What a run of thousands of slices holds of them, and what it tells: no broker and no Spark."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

from kpipe_platform.dead_letters import Distribution
from kpipe_platform.io_managers.metadata import describe, materialization_metadata
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.slices.report import TABLE_ROWS, IsolationCost, RunSummary, SliceReport
from kpipe_platform.spark.sink.spec import PreviewRow
from kpipe_platform.spark.stage.notes import RuleCount
from kpipe_platform_tests.metadata import plain_metadata


def report_of(number: int, *, partition: int = 0, slice_id: str = "", **changes: Any) -> SliceReport:
    """The report of a slice of ten offsets; every tenth of them is a dead letter."""
    start = number * 10
    planned = PlannedRange(OffsetRange("orders", partition, start, start + 10), "id", 0, start + 12, start)
    report = SliceReport(
        Slice("kpipe.a", "run", slice_id or f"s{number}", (planned,)),
        [SliceCounts(read=10, written=9, dead_lettered=1)],
        reasons={f"not JSON at {number}": 1},
        rules={"r": RuleCount("r", "skip", checked=10, failed=1)},
        preview=[PreviewRow("k", json.dumps({"id": number}))],
        columns={"enriched": (("id", "bigint"),)},
        steps_s={"plan": 0.001, "write": 0.1},
        duration_s=0.25,
    )
    return replace(report, **changes)


def values(summary: RunSummary) -> dict[str, Any]:
    return plain_metadata(materialization_metadata(summary))


def test_totals_are_exact_and_size_does_not_grow() -> None:
    slices = 5_000
    early, late = RunSummary.of(map(report_of, range(1_500))), RunSummary.of(map(report_of, range(slices)))
    late.latencies.add(range(1, 20_000))
    found = values(late)
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (50_000, 45_000, 5_000)
    assert (found["slice_count"], found["lag"], found["duration_s"]) == (slices, 2, 1250.0)
    assert found["ranges"] == [{"topic": "orders", "partition": 0, "start": 0, "end": slices * 10, "topic_id": "id"}]
    rows = [record.data for record in found["slices"].records]
    assert len(rows) == TABLE_ROWS
    assert (rows[0]["start"], rows[-1]["end"]) == ((slices - TABLE_ROWS) * 10, slices * 10)
    assert sum(late.reasons.values()) == slices
    assert len(pickle.dumps(late)) < 1.5 * len(pickle.dumps(early))
    assert len(found["dead_letter_reasons"].splitlines()) == 22
    assert found["rules"].records[0].data == {"rule": "r", "action": "skip", "checked": 50_000, "failed": 5_000}


def test_facts_stand_first_then_what_the_stage_added_and_settings_last() -> None:
    added = {(None, key): "x" for key in ("chart", "kpipe/records_read", "kpipe/ranges")}
    summary = RunSummary.of([report_of(0, metadata=added), report_of(1)])
    metadata = materialization_metadata(summary, Distribution.here(instance="blue", group="kpipe.a"))
    keys = list(metadata)
    assert [key for key in keys if not key.startswith(("kpipe/", "dagster/"))] == ["chart"]
    assert keys[:5] == [
        f"kpipe/{name}" for name in ("records_read", "records_written", "dead_letters", "records_skipped", "lag")
    ]
    assert keys.index("kpipe/slices") < keys.index("chart") < keys.index("kpipe/steps")
    assert keys[-4:] == ["kpipe/consumer_group", "kpipe/instance", "kpipe/worker", "kpipe/ranges"]
    assert metadata["kpipe/records_read"].value == 20
    assert metadata["kpipe/ranges"].value[0]["end"] == 20


def test_one_slice_is_told_as_it_is() -> None:
    found = values(RunSummary.of([report_of(0)]))
    assert "slice_count" not in found
    assert "latency_p50_ms" not in found
    assert [record.data["seconds"] for record in found["slices"].records] == [0.25]
    assert {r.data["step"]: r.data["seconds"] for r in found["steps"].records} == {
        "plan": 0.001,
        "spark": 0.149,
        "open": 0.0,
        "write": 0.1,
        "commit": 0.0,
    }
    assert materialization_metadata(RunSummary()) == {}


def shown(report: SliceReport) -> list[int]:
    """The partitions in the table of slices."""
    return [record.data["partition"] for record in values(RunSummary.of([report]))["slices"].records]


def test_partitions_without_anything_new_are_shown_only_alone() -> None:
    idle = PlannedRange(OffsetRange("orders", 1, 5, 5), "id", 0, 5, 5)
    both = report_of(0)
    both = replace(
        both, slice=replace(both.slice, ranges=(*both.slice.ranges, idle)), counts=[*both.counts, SliceCounts()]
    )
    assert shown(both) == [0]
    alone = SliceReport(Slice("kpipe.a", "run", "s", (idle,)), [SliceCounts()])
    assert shown(alone) == [1]
    assert [item["partition"] for item in values(RunSummary.of([both]))["ranges"]] == [0, 1]


def test_the_costs_of_isolation_add_up() -> None:
    spent = [IsolationCost(5, 1, 0.3), IsolationCost(3, 2, 0.2)]
    reports = [report_of(0, isolation=spent[0]), report_of(1), report_of(2, isolation=spent[1])]
    (row,) = values(RunSummary.of(reports))["isolation"].records
    assert row.data == {"records": 3, "stage_calls": 8, "seconds": 0.5}


def test_output_that_nobody_counted_is_not_told() -> None:
    found = values(RunSummary.of([report_of(0), report_of(1, counted_output=False)]))
    assert "records_written" not in found
    assert "written" not in found["slices"].records[0].data


def test_a_log_line_tells_where_the_offsets_moved() -> None:
    summary = RunSummary.of([report_of(0), report_of(1), report_of(0, partition=3)])
    assert describe(summary)["slice"] == "orders/0 [0, 20), orders/3 [0, 10) in 3 slices"
    assert describe(RunSummary.of([report_of(0)]))["slice"] == "orders/0 [0, 10)"
