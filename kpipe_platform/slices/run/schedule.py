"""Decide whether a run takes another slice of a unit, waits for records, or finishes the unit. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kpipe_platform.slices.settings import RunLimits

Action: TypeAlias = Literal["take", "wait", "finish"]


@dataclass(frozen=True)
class Progress:
    """The progress of a unit.

    Args:
        began_s: When the run started the unit, monotonic seconds.
        slices: Number of slices that the run took, without empty ones.
        has_backlog: Whether unread records follow the last slice.
        quiet_since_s: When the unit caught up after its last records, monotonic seconds; None: not caught up yet.
    """

    began_s: float
    slices: int = 0
    has_backlog: bool = False
    quiet_since_s: float | None = None


def after_slice(
    progress: Progress, limits: RunLimits, *, is_empty: bool, records: int, has_backlog: bool, now_s: float
) -> tuple[Progress, Action]:
    """Return the progress after a slice and the next action.

    Args:
        progress: Progress of the unit before the slice.
        limits: How many slices to take.
        is_empty: Whether the slice was empty.
        records: Number of records that were read.
        has_backlog: Whether unread records follow the slice.
        now_s: Current time, monotonic seconds.
    """
    quiet_since_s = progress.quiet_since_s
    if not has_backlog and (quiet_since_s is None or records):
        quiet_since_s = now_s
    after = Progress(progress.began_s, progress.slices + (not is_empty), has_backlog, quiet_since_s)
    return after, next_action(after, limits, now_s)


def next_action(progress: Progress, limits: RunLimits, now_s: float) -> Action:
    """Return the next action for a unit after at least one slice, if no new records are known.

    Args:
        progress: Progress of the unit.
        limits: How many slices to take.
        now_s: Current time, monotonic seconds.
    """
    if limits.max_slices is not None and progress.slices >= limits.max_slices:
        return "finish"
    if limits.max_duration_s is not None and now_s >= progress.began_s + limits.max_duration_s:
        return "finish"
    if progress.has_backlog:
        return "take"
    if limits.linger_s is None or progress.quiet_since_s is None:
        return "finish"
    return "finish" if now_s >= progress.quiet_since_s + limits.linger_s else "wait"
