"""Slice reports as Dagster's materialization metadata: numbers that Dagster plots, tables, a preview."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform.dead_letters import Distribution
from kpipe_platform.io_managers.step import RULES
from kpipe_platform.partitions.materializations import RANGES
from kpipe_platform.slices.report import IsolationCost, Row, RunSummary
from kpipe_platform.spark.sink.spec import PreviewRow
from kpipe_platform.spark.stage.notes import RuleCount

_Cell = str | int | float | bool | None
_CELL_CHARACTERS = 120
# Markdown syntax: escape, code, emphasis, link or image, column and strikethrough. An underscore inside a word is plain
# text.
_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
_SPACE = re.compile(r"\s")


class _Markdown(str):
    """Markdown that kpipe generates, which is not escaped."""

    __slots__ = ()


def materialization_metadata(summary: RunSummary, who: Distribution | None = None) -> dict[str, Any]:
    """Return the metadata of one materialization.

    Args:
        summary: The slices.
        who: The deployment and the process that took the slices.

    Returns:
        By name: records_read, records_written (absent where another IO manager stored the output and nobody counted),
        dead_letters, skipped, lag (offsets that waited behind the last slice), duration_s, records_per_s; slices_taken
        where there are several; latency_p50_ms and latency_p95_ms, produce to commit, where the run followed the
        stream; parts_at_once where a slice was written in several; slices (the last 100) and steps as tables;
        dead_letter_reasons, rules (records that each rule does not hold for), isolation (what it cost to find the
        records that the stage fails on), preview, lost_ranges (deleted unread) and resumed_ranges (the group's offset
        was gone, and Dagster's taken) where there are any; dagster/row_count and dagster/column_schema; instance,
        worker and lease, as far as they are known; kpipe/ranges for the next plan.
        Before them what the stage added, under any other name.
    """
    last = summary.last
    if last is None:
        return {}
    total, duration_s = summary.total, summary.duration_s
    metadata: dict[str, Any] = dict(summary.metadata)
    metadata["records_read"] = dg.MetadataValue.int(total.read)
    if summary.counted_output:
        metadata["records_written"] = dg.MetadataValue.int(total.written)
        metadata["dagster/row_count"] = dg.MetadataValue.int(total.written)
    metadata |= {
        "dead_letters": dg.MetadataValue.int(total.dead_lettered),
        "skipped": dg.MetadataValue.int(total.skipped),
        "lag": dg.MetadataValue.int(sum(planned.backlog for planned in last.slice.ranges)),
        "duration_s": dg.MetadataValue.float(round(duration_s, 3)),
        "records_per_s": dg.MetadataValue.float(round(total.read / duration_s, 1) if duration_s else 0.0),
    }
    if summary.slices > 1:
        metadata["slices_taken"] = dg.MetadataValue.int(summary.slices)
    names = ("latency_p50_ms", "latency_p95_ms")
    for name, latency_ms in zip(names, summary.latencies.percentiles(50, 95), strict=True):
        if latency_ms is not None:
            metadata[name] = dg.MetadataValue.int(latency_ms)
    reasons = _reasons(summary.reasons)
    if reasons:
        metadata["dead_letter_reasons"] = dg.MetadataValue.md(markdown_table(("records", "reason"), reasons))
    if summary.rules:
        metadata[RULES] = dg.MetadataValue.table(_rules(summary.rules))
    if (cost := summary.isolation) is not None:
        metadata["isolation"] = dg.MetadataValue.table([_isolation(cost)])
    if summary.lanes > 1:
        metadata["parts_at_once"] = dg.MetadataValue.int(summary.lanes)
    # List idle partitions only if no partition was busy: they would hide the busy ones.
    if rows := list(summary.busy or summary.idle):
        metadata["slices"] = _slices(rows, counted_output=summary.counted_output)
    metadata["steps"] = _steps(summary)
    if summary.preview:
        metadata["preview"] = dg.MetadataValue.md(preview(summary.preview))
    if summary.lost:
        metadata["lost_ranges"] = _listed(summary.lost)
    if summary.resumed:
        metadata["resumed_ranges"] = _listed(map(str, summary.resumed))
    if summary.columns:
        metadata["dagster/column_schema"] = dg.TableSchema(
            columns=[dg.TableColumn(name, kind) for name, kind in summary.columns]
        )
    metadata["consumer_group"] = dg.MetadataValue.text(last.slice.group)
    if who is not None:
        named = {"instance": who.instance, "worker": who.worker, "lease": who.lease}
        metadata |= {name: dg.MetadataValue.text(value) for name, value in named.items() if value is not None}
    # Last, because the next plan reads it, not people.
    metadata[RANGES] = dg.MetadataValue.json(_ranges(summary))
    return metadata


def _listed(texts: Iterable[str]) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md("\n".join(f"- {text}" for text in texts))


def _rules(found: Mapping[str, RuleCount]) -> list[dg.TableRecord]:
    return [
        dg.TableRecord({"rule": c.rule, "action": c.action, "checked": c.checked, "failed": c.failed})
        for c in sorted(found.values(), key=lambda c: (-c.failed, c.rule))
    ]


def _isolation(cost: IsolationCost) -> dg.TableRecord:
    return dg.TableRecord({"records": cost.records, "stage_calls": cost.calls, "seconds": round(cost.duration_s, 3)})


def _slices(taken: Sequence[Row], *, counted_output: bool) -> dg.TableMetadataValue:
    rows: list[dict[str, _Cell]] = [
        {
            "topic": row.planned.range.topic,
            "partition": row.planned.range.partition,
            "start": row.planned.range.start,
            "end": row.planned.range.end,
            "read": row.counts.read,
            "written": row.counts.written,
            "dead_letters": row.counts.dead_lettered,
            "skipped": row.counts.skipped,
            "lag": row.planned.backlog,
            "seconds": round(row.duration_s, 3),
        }
        for row in taken
    ]
    if len({row["topic"] for row in rows}) == 1:
        # The UI's overview shows a narrow table completely.
        for row in rows:
            del row["topic"]
    if not counted_output:
        for row in rows:
            del row["written"]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows])


def _steps(summary: RunSummary) -> dg.TableMetadataValue:
    seconds = {s: summary.steps_s.get(s, 0.0) for s in ("plan", "open", "write", "store", "commit")}
    # Spark used the remaining time: its stages run before the writer's task or feed it.
    seconds["spark"] = max(summary.duration_s - sum(seconds.values()), 0.0)
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


def _ranges(summary: RunSummary) -> list[dict[str, Any]]:
    """Return the first start and last end of each partition: the second copy of the group's offsets."""
    return [
        {"topic": topic, "partition": number, "start": moved.start, "end": moved.end, "topic_id": moved.topic_id}
        for (topic, number), moved in summary.moved.items()
    ]


def _reasons(total: Mapping[str, int]) -> list[tuple[str, str]]:
    ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    return [(f"{count:,}", reason) for reason, count in ordered[:20]]


def preview(rows: Sequence[PreviewRow]) -> str:
    """Return written records as Markdown: JSON objects with one column per record, others as key and value."""
    values = [_object(row.value) for row in rows]
    objects = [value for value in values if value is not None]
    if len(objects) < len(rows):
        return markdown_table(("key", "value"), [(row.key, row.value) for row in rows])
    names = list(dict.fromkeys(name for value in objects for name in value))
    lines: list[list[str | None]] = [[_Markdown("*key*"), *(row.key for row in rows)]]
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
    """Return a Markdown table of plain text. Long cells are truncated."""

    def line(cells: Sequence[str | None]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    return "\n".join([line(head), "|" + " --- |" * len(head), *(line(row) for row in rows)])


def _cell(text: str | None) -> str:
    if text is None:
        return "*null*"
    if isinstance(text, _Markdown):
        return text
    short = text if len(text) <= _CELL_CHARACTERS else text[:_CELL_CHARACTERS] + "…"
    # Record values are untrusted: a user's browser would fetch an image in them.
    escaped = _MARKUP.sub(r"\\\g<0>", _SPACE.sub(" ", short))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def describe(summary: RunSummary) -> Mapping[str, Any]:
    """Return the fields of a log line about one slice, or about all slices of a run."""
    total = summary.total
    names = [f"{topic}/{number} [{moved.start}, {moved.end})" for (topic, number), moved in summary.moved.items()]
    return {
        "slice": ", ".join(names) + (f" in {summary.slices} slices" if summary.slices > 1 else ""),
        "read": total.read,
        "written": total.written,
        "dead_letters": total.dead_lettered,
        "skipped": total.skipped,
        "seconds": round(summary.duration_s, 2),
    }
