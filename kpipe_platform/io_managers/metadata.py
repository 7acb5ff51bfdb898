"""Slice reports as Dagster's materialization metadata: numbers that Dagster plots, tables, a preview."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform import metadata_keys as keys
from kpipe_platform.dead_letters import Distribution
from kpipe_platform.slices.report import IsolationCost, Row, RunSummary, SliceReport
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


def materialization_metadata(
    summary: RunSummary, who: Distribution | None = None, topic: str | None = None
) -> dict[str, Any]:
    """Return the metadata of one materialization.

    Args:
        summary: The slices.
        who: The deployment and the process that processed the slices.
        topic: The topic of one output of a ``@kafka_multi_asset``, whose records are counted and shown. None: those of
            all topics.

    Returns:
        By key, in this order: what the run did, metadata that the stage added under other keys, how the run spent its
        time, and its settings with the ranges for the next plan. Keys that do not apply are absent.
    """
    last = summary.last
    if last is None:
        return {}
    settings: dict[str, Any] = {keys.CONSUMER_GROUP: dg.MetadataValue.text(last.slice.group)}
    if who is not None:
        named = {keys.INSTANCE: who.instance, keys.WORKER: who.worker, keys.LEASE: who.lease}
        settings |= {key: dg.MetadataValue.text(value) for key, value in named.items() if value is not None}
    # Last, because the next plan reads it, not people.
    settings[keys.RANGES] = dg.MetadataValue.json(_ranges(summary))
    facts, rest = _facts(summary, last, topic), _work(summary, topic) | settings
    added = {
        key: value
        for (of, key), value in summary.metadata.items()
        if key not in facts and key not in rest and (topic is None or of in (None, topic))
    }
    return facts | added | rest


def _written(summary: RunSummary, topic: str | None) -> int | None:
    """Return the number of written records, of one topic or of all; None if it is unknown."""
    if not summary.counted_output:
        return None
    if topic is None:
        return summary.total.written
    return None if summary.written is None else summary.written.get(topic, 0)


def _facts(summary: RunSummary, last: SliceReport, topic: str | None) -> dict[str, Any]:
    """Return what the run did: counts, lag, times, offsets, lost ranges and failures."""
    total, duration_s = summary.total, summary.duration_s
    facts: dict[str, Any] = {keys.RECORDS_READ: dg.MetadataValue.int(total.read)}
    if (written := _written(summary, topic)) is not None:
        facts[keys.RECORDS_WRITTEN] = dg.MetadataValue.int(written)
    if topic is None and summary.written is not None and len(summary.written) > 1:
        facts[keys.RECORDS_BY_TOPIC] = dg.MetadataValue.table(
            [dg.TableRecord({"topic": name, "written": count}) for name, count in summary.written.items()]
        )
    facts |= {
        keys.DEAD_LETTERS: dg.MetadataValue.int(total.dead_lettered),
        keys.RECORDS_SKIPPED: dg.MetadataValue.int(total.skipped),
        keys.LAG: dg.MetadataValue.int(sum(planned.backlog for planned in last.slice.ranges)),
        keys.DURATION_S: dg.MetadataValue.float(round(duration_s, 3)),
        keys.RECORDS_PER_S: dg.MetadataValue.float(round(total.read / duration_s, 1) if duration_s else 0.0),
    }
    names = (keys.LATENCY_P50_MS, keys.LATENCY_P95_MS)
    for name, latency_ms in zip(names, summary.latencies.percentiles(50, 95), strict=True):
        if latency_ms is not None:
            facts[name] = dg.MetadataValue.int(latency_ms)
    if summary.slices > 1:
        facts[keys.SLICE_COUNT] = dg.MetadataValue.int(summary.slices)
    # List idle partitions only if no partition was busy: they would hide the busy ones.
    if rows := list(summary.busy or summary.idle):
        facts[keys.SLICES] = _slices(rows, counted_output=summary.counted_output)
    if summary.lost:
        facts[keys.LOST_RANGES] = _listed(summary.lost)
    if summary.resumed:
        facts[keys.RESUMED_RANGES] = _listed(map(str, summary.resumed))
    if reasons := _reasons(summary.reasons):
        facts[keys.DEAD_LETTER_REASONS] = dg.MetadataValue.md(markdown_table(("records", "reason"), reasons))
    if summary.rules:
        facts[keys.RULES] = dg.MetadataValue.table(_rules(summary.rules))
    if shown := [row for row in summary.preview if topic in (None, row.topic)]:
        facts[keys.PREVIEW] = dg.MetadataValue.md(preview(shown))
    return facts


def _work(summary: RunSummary, topic: str | None) -> dict[str, Any]:
    """Return how the run spent its time, and Dagster's own keys."""
    work: dict[str, Any] = {keys.STEPS: _steps(summary)}
    if (cost := summary.isolation) is not None:
        work[keys.ISOLATION] = dg.MetadataValue.table([_isolation(cost)])
    if summary.lanes > 1:
        work[keys.TRANSACTIONS_PER_SLICE] = dg.MetadataValue.int(summary.lanes)
    if (written := _written(summary, topic)) is not None:
        work["dagster/row_count"] = dg.MetadataValue.int(written)
    columns = {name: kind for of in summary.columns if topic in (None, of) for name, kind in summary.columns[of]}
    if columns:
        work["dagster/column_schema"] = dg.TableSchema(
            columns=[dg.TableColumn(name, kind) for name, kind in columns.items()]
        )
    return work


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
    # The remaining time is Spark's: its stages run before the writer task or feed it.
    seconds["spark"] = max(summary.duration_s - sum(seconds.values()), 0.0)
    meaning = {
        "plan": "watermarks, committed offsets, checks",
        "spark": "read, decode and run the stage",
        "open": "take over the transactional id, compare offsets",
        "write": "send and await acknowledgments",
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
    if len({row.topic for row in rows}) > 1:
        lines.insert(0, [_Markdown("*topic*"), *(row.topic for row in rows)])
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
