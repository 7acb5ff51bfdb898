"""Output of dead letters and redrive results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kpipe_platform.cli.output import print_hint, print_line
from kpipe_platform.cli.tables import print_table

if TYPE_CHECKING:
    from kpipe_platform.dead_letters.browse import Listed, Stats
    from kpipe_platform.dead_letters.read.found import FoundDeadLetter
    from kpipe_platform.dead_letters.redrive.decide import Decision
    from kpipe_platform.dead_letters.redrive.results import RedriveProgress, RedriveResult
    from kpipe_platform.kafka.model.records import KafkaRecord

__all__ = [
    "as_json",
    "as_text",
    "hint_unknown",
    "moving_bar",
    "print_dead_letter",
    "print_dead_letters",
    "print_decisions",
    "print_result",
    "print_stats",
]

# Keeps a table row on one line of a usual terminal. `show` and JSON contain the complete message.
_MESSAGE_CHARS = 60
_KEPT_SHOWN = 20


def as_text(data: bytes | None) -> str | None:
    """Return bytes as text if they are UTF-8 without control characters, else as hexadecimal digits."""
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if all(c.isprintable() or c in "\n\t" for c in text) else f"0x{data.hex()}"


def as_json(listed: Listed) -> dict[str, Any]:
    """Return a dead letter without its payload as JSON values."""
    from kpipe_platform.dead_letters.envelope.times import to_iso

    found = listed.found
    return {
        "partition": found.dead_letter.partition,
        "offset": found.dead_letter.offset,
        "redriven": listed.is_done,
        "time": to_iso(found.time_ms),
        "family": found.family,
        "original": {
            "topic": found.original.topic,
            "partition": found.original.partition,
            "offset": found.original.offset,
            "timestamp_ms": found.original.timestamp_ms,
        },
        "exception": found.exception_type,
        "cause": found.cause_type,
        "message": found.message,
        "component": found.component,
        "kind": found.kind,
        "rules": list(found.rules),
        "asset": found.who,
        "attempts": found.attempts,
        "redacted": found.redacted,
        "problem": found.problem,
    }


def print_dead_letters(dead_letters: list[Listed]) -> None:
    """Print a table of dead letters."""
    from kpipe_platform.dead_letters.envelope.times import to_iso

    print_table(
        ("at", "time", "original", "exception", "message", "attempts", "state"),
        [
            (
                _position(each.found.dead_letter),
                to_iso(each.found.time_ms),
                _coordinates(each.found.original),
                each.found.exception_type or each.found.kind,
                _truncated(each.found.message),
                each.found.attempts,
                "redriven" if each.is_done else "waiting",
            )
            for each in dead_letters
        ],
    )


def print_dead_letter(dead_letter: FoundDeadLetter, is_complete: bool) -> None:
    """Print one dead letter in full."""
    from kpipe_platform.dead_letters.envelope.times import to_iso

    original = dead_letter.original
    facts = {
        "dead letter": dead_letter.place,
        "family": dead_letter.family,
        "time": to_iso(dead_letter.time_ms),
        "original": _coordinates(original),
        "original timestamp": to_iso(original.timestamp_ms),
        "exception": dead_letter.exception_type,
        "cause": dead_letter.cause_type,
        "message": dead_letter.message,
        "component": dead_letter.component,
        "kind": dead_letter.kind,
        "rules": ", ".join(dead_letter.rules) or None,
        "asset": dead_letter.who,
        "attempts": dead_letter.attempts,
        "redacted": "yes" if dead_letter.redacted else None,
        "problem": dead_letter.problem,
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            print_line(f"{name.ljust(width)}  {value}")
    if not is_complete:
        return
    print_line("")
    for name, data in original.headers:
        print_line(f"header {name}: {_or_null(data)}")
    print_line(f"key: {_or_null(original.key)}")
    print_line(f"value: {_or_null(original.value)}")


def hint_unknown(topic: str, families: Iterable[str]) -> None:
    """Explain how to add a header family if the family of every shown dead letter is unknown."""
    from kpipe_platform.dead_letters.read.header_families import ADD_A_FAMILY

    if set(families) == {"unknown"}:
        print_hint(
            f"Topic {topic!r} is not a dead-letter topic, or kpipe does not support its header family; {ADD_A_FAMILY}."
        )


def print_stats(stats: Stats) -> None:
    """Print tables of counts."""
    print_line(f"{stats.total} dead letter(s), {stats.waiting} waiting to be redriven")
    heads = {
        "by_reason": "reason",
        "by_topic": "original topic",
        "by_partition": "original partition",
        "by_asset": "asset",
        "by_age": "age",
        "by_family": "written by",
        "by_attempts": "attempts",
    }
    for name, head in heads.items():
        rows = getattr(stats, name).most_common()
        if rows:
            print_line("")
            print_table((head, "dead letters"), rows)


def print_decisions(decisions: list[Decision]) -> None:
    """Print a table of what a redrive would do with each dead letter."""
    print_table(
        ("at", "action", "to", "attempt", "reason"),
        [
            (
                _position(each.found.dead_letter),
                str(each.action),
                each.target,
                each.attempts,
                each.detail or each.reason,
            )
            for each in decisions
        ],
    )


def print_result(result: RedriveResult) -> None:
    """Print counts by partition to standard output, and explanations to standard error."""
    counts = {
        "read": "read",
        "sent": "sent",
        "parked": "parked",
        "kept": "kept",
        "left_out": "left out",
        "done_before": "done before",
    }
    head = ("partition", "from", "to", "committed", *counts.values())
    rows = [(p.partition, p.start, p.end, p.committed, *(getattr(p, n) for n in counts)) for p in result.partitions]
    print_table(head, rows)
    would = "would be " if result.dry_run else ""
    for topic, count in result.sent_to.most_common():
        print_hint(f"{count} record(s) {would}sent to {topic}.")
    if result.total("parked"):
        print_hint(f"{result.total('parked')} dead letter(s) {would}parked in {result.parking_topic}.")
    for each in result.kept[:_KEPT_SHOWN]:
        print_hint(f"Kept {each.partition}@{each.offset} ({each.reason}): {each.detail}.")
    more = result.total("kept") - min(len(result.kept), _KEPT_SHOWN)
    if more > 0:
        print_hint(f"Kept {more} more: {', '.join(f'{n} {r}' for r, n in result.kept_by_reason.most_common())} in all.")
    if result.total("expired"):
        print_hint(f"Up to {result.total('expired')} dead letter(s) were deleted before they were redriven.")
    if result.short_lived:
        print_hint(
            f"{result.short_lived} of the records are older than the retention of their topic: the brokers delete them "
            "again unless you raise its retention.ms."
        )
    if result.limited:
        print_hint("Stopped at --limit. Run the command again to continue.")
    if any(p.is_new and p.moved for p in result.partitions):
        print_hint(
            f"Group {result.group} had no offset: this is its first redrive, or its offset expired "
            "(offsets.retention.minutes)."
        )
    if result.dry_run:
        print_hint("Dry run: nothing was sent or parked.")


@contextmanager
def moving_bar(description: str) -> Iterator[Callable[[RedriveProgress], None]]:
    """Show a progress bar on standard error, if that is a terminal.

    Yields:
        A function that takes the progress.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    # Imported here because only commands with progress output need rich.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[int, Any] = {}

        def show(event: RedriveProgress) -> None:
            if event.partition not in tasks:
                tasks[event.partition] = bar.add_task(f"{description}/{event.partition}")
            bar.update(tasks[event.partition], total=event.end - event.start, completed=event.position - event.start)

        yield show


def _position(record: KafkaRecord) -> str:
    return f"{record.partition}@{record.offset}"


def _coordinates(record: KafkaRecord) -> str | None:
    if record.topic is None:
        return None
    partition, offset = ("?" if each is None else each for each in (record.partition, record.offset))
    return f"{record.topic}/{partition}@{offset}"


def _truncated(message: str | None) -> str | None:
    if message is None:
        return None
    line = " ".join(message.split())
    return line if len(line) <= _MESSAGE_CHARS else f"{line[: _MESSAGE_CHARS - 3]}..."


def _or_null(data: bytes | None) -> str:
    text = as_text(data)
    return "(null)" if text is None else text
