"""Slice reports as Dagster materialisation metadata: numbers that Dagster plots, tables, a preview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform.io_managers.pipeline import SliceReport
from kpipe_platform.io_managers.step import RANGES
from kpipe_platform.kafka.commit_metadata import SliceCounts

_Cell = str | int | float | bool | None
# Rows of a table in the metadata; Dagster stores the whole of it with every event.
_TABLE_ROWS = 100


def metadata_of(reports: Sequence[SliceReport]) -> dict[str, Any]:
    """Metadata of one materialisation that took these slices, in order.

    Returns:
        By name: records_read, records_written (absent where another IO manager stored the output and nobody
        counted), dead_letters, skipped, lag (offsets that waited behind the last slice), duration_s, records_per_s;
        slices and steps as tables; dead_letter_reasons, preview and lost_ranges where there are any;
        dagster/row_count and dagster/column_schema; kpipe/ranges for the next plan.
    """
    if not reports:
        return {}
    last = reports[-1]
    total = sum((report.total for report in reports), SliceCounts())
    duration_s = sum(report.duration_s for report in reports)
    metadata: dict[str, Any] = {
        "records_read": dg.MetadataValue.int(total.read),
        "dead_letters": dg.MetadataValue.int(total.dead_lettered),
        "skipped": dg.MetadataValue.int(total.skipped),
        "lag": dg.MetadataValue.int(last.lag),
        "duration_s": dg.MetadataValue.float(round(duration_s, 3)),
        "records_per_s": dg.MetadataValue.float(round(total.read / duration_s, 1) if duration_s else 0.0),
        "steps": _steps(reports),
        "consumer_group": dg.MetadataValue.text(last.slice.group),
        RANGES: dg.MetadataValue.json(_ranges(reports)),
    }
    if any(report.slice.ranges for report in reports):
        metadata["slices"] = _slices(reports)
    if all(report.counted_output for report in reports):
        metadata["records_written"] = dg.MetadataValue.int(total.written)
        metadata["dagster/row_count"] = dg.MetadataValue.int(total.written)
    reasons = _reasons(reports)
    if reasons:
        metadata["dead_letter_reasons"] = dg.MetadataValue.md(_markdown(("records", "reason"), reasons))
    preview = [row for report in reports for row in report.preview][:10]
    if preview:
        rows = [(row.key, row.value) for row in preview]
        metadata["preview"] = dg.MetadataValue.md(_markdown(("key", "value"), rows))
    lost = [str(planned.lost) for report in reports for planned in report.slice.ranges if planned.lost]
    if lost:
        metadata["lost_ranges"] = dg.MetadataValue.md("\n".join(f"- {text}" for text in lost))
    columns = next((report.columns for report in reversed(reports) if report.columns), ())
    if columns:
        metadata["dagster/column_schema"] = dg.TableSchema(
            columns=[dg.TableColumn(name, kind) for name, kind in columns]
        )
    return metadata


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
    if not all(report.counted_output for report in reports):
        for row in rows:
            del row["written"]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows[-_TABLE_ROWS:]])


def _steps(reports: Sequence[SliceReport]) -> dg.TableMetadataValue:
    seconds = {s: sum(report.steps_s.get(s, 0.0) for report in reports) for s in ("plan", "open", "write", "commit")}
    # What the writer did not spend, Spark spent: its stages run before the writer's task, or feed it.
    seconds["spark"] = max(sum(report.duration_s for report in reports) - sum(seconds.values()), 0.0)
    meaning = {
        "plan": "watermarks, committed offsets, checks",
        "spark": "read, decode and run the stage",
        "open": "take over the transactional id, compare offsets",
        "write": "send and await acknowledgements",
        "commit": "offsets and commit",
    }
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


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str | None]]) -> str:
    def line(cells: Sequence[str | None]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    return "\n".join([line(head), "|" + " --- |" * len(head), *(line(row) for row in rows)])


def _cell(text: str | None) -> str:
    if text is None:
        return "*null*"
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


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
