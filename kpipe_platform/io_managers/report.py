"""Slice reports as Dagster materialisation metadata: numbers that Dagster plots, tables, a preview."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform.deadletter import Distribution
from kpipe_platform.io_managers.staged import IsolationCost, SliceReport
from kpipe_platform.io_managers.step import RANGES, RULES
from kpipe_platform.kafka.commit_metadata import SliceCounts
from kpipe_platform.spark.stage_notes import RuleCount
from kpipe_platform.spark.writer_spec import PreviewRow

_Cell = str | int | float | bool | None
# Rows of a table in the metadata; Dagster stores the whole of it with every event.
_TABLE_ROWS = 100
_PREVIEW_ROWS = 5
_CELL_CHARACTERS = 120


def metadata_of(reports: Sequence[SliceReport], who: Distribution | None = None) -> dict[str, Any]:
    """Metadata of one materialisation that took these slices, in order.

    Args:
        reports: The slices.
        who: Which deployment and which process took them.

    Returns:
        By name: records_read, records_written (absent where another IO manager stored the output and nobody counted),
        dead_letters, skipped, lag (offsets that waited behind the last slice), duration_s, records_per_s; parts_at_once
        where a slice was written in several; slices and steps as tables; dead_letter_reasons, rules (records that each
        rule does not hold for), isolation (what it cost to find the records that the stage fails on), preview and
        lost_ranges where there are any; dagster/row_count and dagster/column_schema; instance, worker and lease, as far
        as they are known; kpipe/ranges for the next plan.
    """
    if not reports:
        return {}
    last = reports[-1]
    total = sum((report.total for report in reports), SliceCounts())
    duration_s = sum(report.duration_s for report in reports)
    metadata: dict[str, Any] = {"records_read": dg.MetadataValue.int(total.read)}
    if all(report.counted_output for report in reports):
        metadata["records_written"] = dg.MetadataValue.int(total.written)
        metadata["dagster/row_count"] = dg.MetadataValue.int(total.written)
    metadata |= {
        "dead_letters": dg.MetadataValue.int(total.dead_lettered),
        "skipped": dg.MetadataValue.int(total.skipped),
        "lag": dg.MetadataValue.int(last.lag),
        "duration_s": dg.MetadataValue.float(round(duration_s, 3)),
        "records_per_s": dg.MetadataValue.float(round(total.read / duration_s, 1) if duration_s else 0.0),
    }
    reasons = _reasons(reports)
    if reasons:
        metadata["dead_letter_reasons"] = dg.MetadataValue.md(markdown_table(("records", "reason"), reasons))
    rules = _rules(reports)
    if rules:
        metadata[RULES] = dg.MetadataValue.table(rules)
    # Each part of a slice holds what was spent until then, so its last part holds all of it.
    isolation = {report.slice.whole_id: report.isolation for report in reports if report.isolation is not None}
    if isolation:
        metadata["isolation"] = dg.MetadataValue.table([_isolation(isolation.values())])
    if (parts := max(report.lanes for report in reports)) > 1:
        metadata["parts_at_once"] = dg.MetadataValue.int(parts)
    if any(report.slice.ranges for report in reports):
        metadata["slices"] = _slices(reports)
    metadata["steps"] = _steps(reports)
    rows = [row for report in reports for row in report.preview][:_PREVIEW_ROWS]
    if rows:
        metadata["preview"] = dg.MetadataValue.md(preview(rows))
    lost = [str(planned.lost) for report in reports for planned in report.slice.ranges if planned.lost]
    if lost:
        metadata["lost_ranges"] = dg.MetadataValue.md("\n".join(f"- {text}" for text in lost))
    columns = next((report.columns for report in reversed(reports) if report.columns), ())
    if columns:
        metadata["dagster/column_schema"] = dg.TableSchema(
            columns=[dg.TableColumn(name, kind) for name, kind in columns]
        )
    metadata["consumer_group"] = dg.MetadataValue.text(last.slice.group)
    if who is not None:
        named = {"instance": who.instance, "worker": who.worker, "lease": who.lease}
        metadata |= {name: dg.MetadataValue.text(value) for name, value in named.items() if value is not None}
    # Read by the next plan, not by people: last.
    metadata[RANGES] = dg.MetadataValue.json(_ranges(reports))
    return metadata


def _rules(reports: Sequence[SliceReport]) -> list[dg.TableRecord]:
    found: dict[str, RuleCount] = {}
    for report in reports:
        for name, count in report.rules.items():
            found[name] = count + found[name] if name in found else count
    return [
        dg.TableRecord({"rule": c.rule, "action": c.action, "checked": c.checked, "failed": c.failed})
        for c in sorted(found.values(), key=lambda c: (-c.failed, c.rule))
    ]


def _isolation(costs: Collection[IsolationCost]) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "records": sum(cost.records for cost in costs),
            "stage_calls": sum(cost.calls for cost in costs),
            "seconds": round(sum(cost.duration_s for cost in costs), 3),
        }
    )


def _slices(reports: Sequence[SliceReport]) -> dg.TableMetadataValue:
    rows: list[dict[str, _Cell]] = [
        {
            "topic": planned.range.topic,
            "partition": planned.range.partition,
            "start": planned.range.start,
            "end": planned.range.end,
            "read": counts.read,
            "written": counts.written if report.counted_output else -1,
            "dead_letters": counts.dead_lettered,
            "skipped": counts.skipped,
            "lag": planned.backlog,
            "seconds": round(report.duration_s, 3),
        }
        for report in reports
        for planned, counts in zip(report.slice.ranges, report.counts, strict=True)
    ]
    busy = [row for row in rows if row["start"] != row["end"]]
    if busy and len(busy) < len(rows):
        # Partitions that had nothing new would hide those that had.
        rows = busy
    if len({row["topic"] for row in rows}) == 1:
        # A narrow table is read whole in the UI's overview.
        for row in rows:
            del row["topic"]
    if not all(report.counted_output for report in reports):
        for row in rows:
            del row["written"]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows[-_TABLE_ROWS:]])


def _steps(reports: Sequence[SliceReport]) -> dg.TableMetadataValue:
    seconds = {
        s: sum(report.steps_s.get(s, 0.0) for report in reports) for s in ("plan", "open", "write", "store", "commit")
    }
    # What the writer did not spend, Spark spent: its stages run before the writer's task, or feed it.
    seconds["spark"] = max(sum(report.duration_s for report in reports) - sum(seconds.values()), 0.0)
    meaning = {
        "plan": "watermarks, committed offsets, checks",
        "spark": "read, decode and run the stage",
        "open": "take over the transactional id, compare offsets",
        "write": "send and await acknowledgements",
        "store": "the other IO manager, with the Spark jobs that it starts",
        "commit": "offsets and commit",
    }
    if not seconds["store"]:
        del meaning["store"]
    rows: list[dict[str, _Cell]] = [
        {"step": s, "seconds": round(seconds[s], 3), "what": what} for s, what in meaning.items()
    ]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows])


def _ranges(reports: Sequence[SliceReport]) -> list[dict[str, Any]]:
    """First start and last end of each partition: the second copy of the group's offsets."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for report in reports:
        for planned in report.slice.ranges:
            r = planned.range
            item = found.setdefault(
                (r.topic, r.partition), {"topic": r.topic, "partition": r.partition, "start": r.start}
            )
            item.update(end=r.end, topic_id=planned.topic_id)
    return list(found.values())


def _reasons(reports: Sequence[SliceReport]) -> list[tuple[str, str]]:
    total: dict[str, int] = {}
    for report in reports:
        for reason, count in report.reasons.items():
            total[reason] = total.get(reason, 0) + count
    ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    return [(f"{count:,}", reason) for reason, count in ordered[:20]]


def preview(rows: Sequence[PreviewRow]) -> str:
    """Written records as Markdown: JSON objects field by field, a column a record; anything else as key and value."""
    values = [_object(row.value) for row in rows]
    objects = [value for value in values if value is not None]
    if len(objects) < len(rows):
        return markdown_table(("key", "value"), [(row.key, row.value) for row in rows])
    names = list(dict.fromkeys(name for value in objects for name in value))
    lines: list[list[str | None]] = [["*key*", *(row.key for row in rows)]]
    lines += [[name, *(_text(value.get(name)) for value in objects)] for name in names]
    return markdown_table(("field", *(f"record {n}" for n in range(1, len(rows) + 1))), lines)


def _object(value: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(value or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str | None]]) -> str:
    """A Markdown table; cells are cut to a readable length."""

    def line(cells: Sequence[str | None]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    return "\n".join([line(head), "|" + " --- |" * len(head), *(line(row) for row in rows)])


def _cell(text: str | None) -> str:
    if text is None:
        return "*null*"
    short = text if len(text) <= _CELL_CHARACTERS else text[:_CELL_CHARACTERS] + "…"
    return short.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def describe(report: SliceReport) -> Mapping[str, Any]:
    """One log line's facts."""
    total = report.total
    return {
        "slice": str(report.slice),
        "read": total.read,
        "written": total.written,
        "dead_letters": total.dead_lettered,
        "skipped": total.skipped,
        "seconds": round(report.duration_s, 2),
    }
