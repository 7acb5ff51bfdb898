"""What a stage sets aside while it builds its DataFrame: rows that failed, counts by rule, frames to release.

``map_records`` and ``expect`` give the stage a clean DataFrame back and note here what they took out of it, so that
no later ``select`` of the stage can lose a failed record. The IO manager collects the notes around the call of the
stage and hands them to the writer, which writes them in the slice's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kpipe_platform.dead_letters.envelope.parts import Retry
from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.policies.retry import Attempt
from kpipe_platform.spark.source.cache import drop_cached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_current: ContextVar[StageNotes | None] = ContextVar("kpipe_stage_notes", default=None)


@dataclass
class StageNotes:
    """The notes of one call of a stage.

    Args:
        faults: Rows that failed. Columns: topic (string), partition (int), offset (bigint), note (string, the JSON of
            a ``RowFault``); none is null.
        counts: Counts by rule, a row a rule. Columns: note (string, the JSON of a ``RuleCount``).
        cached: Frames that were persisted for the stage; released when the slice is done.
        rules: Names of the rules that are counted.
        metadata: What the stage adds to the metadata of its asset.
    """

    faults: list[DataFrame] = field(default_factory=list)
    counts: list[DataFrame] = field(default_factory=list)
    cached: list[DataFrame] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def joined(cls, notes: Iterable[StageNotes]) -> StageNotes:
        """The notes of several, as one."""
        found = cls()
        for each in notes:
            found.faults += each.faults
            found.counts += each.counts
            found.cached += each.cached
            found.metadata |= each.metadata
        return found

    def release(self) -> None:
        """Drop the cached rows."""
        while self.cached:
            drop_cached(self.cached.pop())


def current_notes() -> StageNotes | None:
    """Where to note; None when the stage is called by hand, for example in a unit test."""
    return _current.get()


def start_noting(notes: StageNotes | None) -> None:
    """Note there from now on; None to end it. For a caller that does not call the stage itself."""
    _current.set(notes)


@contextmanager
def noting() -> Iterator[StageNotes]:
    """Collect the notes of the stage that is called inside."""
    notes = StageNotes()
    token = _current.set(notes)
    try:
        yield notes
    finally:
        _current.reset(token)


def fault_frame(session: SparkSession, places: Sequence[tuple[str, int, int, str]]) -> DataFrame:
    """A frame for ``StageNotes.faults`` of faults that the driver knows: topic, partition, offset, note."""
    return session.createDataFrame(list(places), "topic string, partition int, offset bigint, note string")


def retry_of(attempt: Attempt) -> Retry:
    """An attempt as the envelope's retry history has it."""
    delay_ms = None if attempt.delay_s is None else int(attempt.delay_s * 1000)
    return Retry(attempt.number, attempt.at_ms, delay_ms, attempt.exception_type, attempt.message)


@dataclass(frozen=True, slots=True)
class RowFault:
    """Why a stage set one row aside; travels as JSON in the column ``note``.

    Args:
        fault: The fault.
        action: What happens to the record; None: what the asset says for its stage.
        rules: Names of the rules that failed.
        retries: Attempts that were made before.
    """

    fault: Fault
    action: FaultAction | None = None
    rules: tuple[str, ...] = ()
    retries: tuple[Retry, ...] = ()

    def to_json(self) -> str:
        """JSON text for the column ``note``."""
        document = {
            "fault": asdict(self.fault),
            "action": None if self.action is None else self.action.value,
            "rules": list(self.rules),
            "retries": [asdict(retry) for retry in self.retries],
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RowFault:
        """Read it back. Names that are missing take their defaults, for notes that Spark's SQL functions made."""
        document: dict[str, Any] = json.loads(text)
        fault = dict(document["fault"])
        action = document.get("action")
        return cls(
            Fault(**{**fault, "component": Component(fault["component"])}),
            None if action is None else FaultAction(action),
            tuple(document.get("rules") or ()),
            tuple(Retry(**retry) for retry in document.get("retries") or ()),
        )


@dataclass(frozen=True, slots=True)
class RuleCount:
    """What one rule found in one slice; travels as JSON in the column ``note``.

    Args:
        rule: Name of the rule.
        action: What happens to the records that it does not hold for: warn, skip, dead_letter, stop, or ``asset``:
            what the asset says.
        checked: Records looked at.
        failed: Records that it does not hold for.
    """

    rule: str
    action: str
    checked: int
    failed: int

    def __add__(self, other: RuleCount) -> RuleCount:
        """Both slices together; the later action counts."""
        return RuleCount(self.rule, other.action, self.checked + other.checked, self.failed + other.failed)

    @classmethod
    def from_json(cls, text: str) -> RuleCount:
        """Read it back."""
        return cls(**json.loads(text))
