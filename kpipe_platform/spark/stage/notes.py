"""Notes of a stage: records that it set aside, counts of its rules, and frames to release.

``map_records`` and ``expect`` return a DataFrame without the failed records and note them here, so that no later
``select`` in the stage can lose a failed record. The IO manager collects the notes during the call of the stage and
passes them to the writer, which writes the dead letters in the slice's transaction.
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
        counts: Counts by rule, one row per rule. Columns: note (string, the JSON of a ``RuleCount``).
        cached: Frames that were persisted for the stage. They are released when the slice is done.
        rules: Names of the rules that are counted.
        metadata: Metadata that the stage adds to materializations, by topic and name; topic None: to all of them.
    """

    faults: list[DataFrame] = field(default_factory=list)
    counts: list[DataFrame] = field(default_factory=list)
    cached: list[DataFrame] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)
    metadata: dict[tuple[str | None, str], Any] = field(default_factory=dict)

    @classmethod
    def joined(cls, notes: Iterable[StageNotes]) -> StageNotes:
        """Combine several notes."""
        all_notes = cls()
        for each in notes:
            all_notes.faults += each.faults
            all_notes.counts += each.counts
            all_notes.cached += each.cached
            all_notes.metadata |= each.metadata
        return all_notes

    def release(self) -> None:
        """Release the cached frames."""
        while self.cached:
            drop_cached(self.cached.pop())


def current_notes() -> StageNotes | None:
    """The active notes; None if the stage is called outside an asset, for example in a unit test."""
    return _current.get()


def start_noting(notes: StageNotes | None) -> None:
    """Make these notes active; None ends it. For callers that do not call the stage themselves; others use `noting`."""
    _current.set(notes)


@contextmanager
def noting() -> Iterator[StageNotes]:
    """Collect the notes of a stage that is called inside the ``with`` block."""
    notes = StageNotes()
    token = _current.set(notes)
    try:
        yield notes
    finally:
        _current.reset(token)


def fault_frame(session: SparkSession, faults: Sequence[tuple[str, int, int, str]]) -> DataFrame:
    """Make a frame for ``StageNotes.faults`` from faults on the driver, as (topic, partition, offset, note)."""
    return session.createDataFrame(list(faults), "topic string, partition int, offset bigint, note string")


def retry_of(attempt: Attempt) -> Retry:
    """Convert an attempt to an entry of the envelope's retry history."""
    delay_ms = None if attempt.delay_s is None else int(attempt.delay_s * 1000)
    return Retry(attempt.number, attempt.at_ms, delay_ms, attempt.exception_type, attempt.message)


@dataclass(frozen=True, slots=True)
class RowFault:
    """Why a stage set one row aside, stored as JSON in the column ``note``.

    Args:
        fault: The fault.
        action: What happens to the record; None for the asset's action for stage faults.
        rules: Names of the rules that the record failed.
        retries: Failed attempts.
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
        """Parse the JSON text. Missing fields get their defaults, because Spark SQL functions make some notes."""
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
    """The counts of one rule in one slice, stored as JSON in the column ``note``.

    Args:
        rule: Name of the rule.
        action: What happens to records that fail the rule: ``warn``, ``skip``, ``dead_letter``, ``stop``, or ``asset``
            for the asset's action.
        checked: Number of records checked.
        failed: Number of records that fail the rule.
    """

    rule: str
    action: str
    checked: int
    failed: int

    def __add__(self, other: RuleCount) -> RuleCount:
        """Add the counts of two slices. The action is that of the second operand."""
        return RuleCount(self.rule, other.action, self.checked + other.checked, self.failed + other.failed)

    @classmethod
    def from_json(cls, text: str) -> RuleCount:
        """Parse the JSON text."""
        return cls(**json.loads(text))
