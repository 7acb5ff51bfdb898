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
    "print_decisions",
    "print_letter",
    "print_letters",
    "print_result",
    "print_stats",
]

# Keeps a table row on one line of a usual terminal. `show` and JSON contain the complete message.
_MESSAGE_CHARS = 60
_KEPT_SHOWN = 20


def as_text(data: bytes | None) -> str | None:
    """Bytes for a person: as text where they are UTF-8 without control characters, else as hexadecimal digits."""
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if all(c.isprintable() or c in "\n\t" for c in text) else f"0x{data.hex()}"


def as_json(listed: Listed) -> dict[str, Any]:
    """A dead letter without its payload, as JSON values."""
    from kpipe_platform.dead_letters.envelope.times import to_iso

    found = listed.found
    return {
        "partition": found.letter.partition,
        "offset": found.letter.offset,
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


def print_letters(letters: list[Listed]) -> None:
    """A table of dead letters."""
    from kpipe_platform.dead_letters.envelope.times import to_iso

    print_table(
        ("at", "time", "original", "exception", "message", "attempts", "state"),
        [
            (
                _place(each.found.letter),
                to_iso(each.found.time_ms),
                _coordinates(each.found.original),
                each.found.exception_type or each.found.kind,
                _short(each.found.message),
                each.found.attempts,
                "redriven" if each.is_done else "waiting",
            )
            for each in letters
        ],
    )


def print_letter(found: FoundDeadLetter, is_complete: bool) -> None:
    """One dead letter in full."""
    from kpipe_platform.dead_letters.envelope.times import to_iso

    original = found.original
    facts = {
        "dead letter": found.place,
        "family": found.family,
        "time": to_iso(found.time_ms),
        "original": _coordinates(original),
        "original timestamp": to_iso(original.timestamp_ms),
        "exception": found.exception_type,
        "cause": found.cause_type,
        "message": found.message,
        "component": found.component,
        "kind": found.kind,
        "rules": ", ".join(found.rules) or None,
        "asset": found.who,
        "attempts": found.attempts,
        "redacted": "yes" if found.redacted else None,
        "problem": found.problem,
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
    """Say how to go on where no family of headers is known of any dead letter that is shown."""
    from kpipe_platform.dead_letters.read.families import ADD_A_FAMILY

    if set(families) == {"unknown"}:
        print_hint(
            f"Topic {topic!r} is no dead-letter topic, or one of a family that kpipe does not know; {ADD_A_FAMILY}."
        )


def print_stats(stats: Stats) -> None:
    """Tables of counts."""
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
    """A table of what would become of each dead letter."""
    print_table(
        ("at", "action", "to", "attempt", "reason"),
        [
            (_place(each.found.letter), str(each.action), each.target, each.attempts, each.detail or each.reason)
            for each in decisions
        ],
    )


def print_result(result: RedriveResult) -> None:
    """Counts by partition on standard output, and on standard error what a person should know."""
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
            f"{result.short_lived} of them have a timestamp older than what their topic keeps: the brokers delete them "
            "again unless its retention.ms is raised."
        )
    if result.limited:
        print_hint("Stopped at the limit; run again for more.")
    if any(p.is_new and p.moved for p in result.partitions):
        print_hint(
            f"Group {result.group} had no offset: this is its first redrive, or the brokers forgot an idle group's "
            "(offsets.retention.minutes)."
        )
    if result.dry_run:
        print_hint("Dry run: nothing was moved.")


@contextmanager
def moving_bar(description: str) -> Iterator[Callable[[RedriveProgress], None]]:
    """A progress bar on standard error; nothing where that is no terminal.

    Yields:
        What takes the progress.
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


def _place(letter: KafkaRecord) -> str:
    return f"{letter.partition}@{letter.offset}"


def _coordinates(record: KafkaRecord) -> str | None:
    if record.topic is None:
        return None
    partition, offset = ("?" if each is None else each for each in (record.partition, record.offset))
    return f"{record.topic}/{partition}@{offset}"


def _short(message: str | None) -> str | None:
    if message is None:
        return None
    line = " ".join(message.split())
    return line if len(line) <= _MESSAGE_CHARS else f"{line[: _MESSAGE_CHARS - 3]}..."


def _or_null(data: bytes | None) -> str:
    text = as_text(data)
    return "(null)" if text is None else text
