"""When a run takes another slice of a unit, waits for records, or is done with it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kpipe_platform.slices.settings import RunLimits

Action: TypeAlias = Literal["take", "wait", "finish"]


@dataclass(frozen=True)
class Progress:
    """How far a unit is.

    Args:
        began_s: When the run began with it, monotonic seconds.
        slices: Slices that it took, without those that had nothing to read.
        has_backlog: Whether records wait behind the last slice.
        quiet_since_s: When it was first caught up after its last records; None: it was not yet.
    """

    began_s: float
    slices: int = 0
    has_backlog: bool = False
    quiet_since_s: float | None = None


def after_slice(
    progress: Progress, limits: RunLimits, *, is_empty: bool, records: int, has_backlog: bool, now_s: float
) -> tuple[Progress, Action]:
    """What comes after a slice.

    Args:
        progress: How far the unit was before it.
        limits: How many slices to take.
        is_empty: Whether it had nothing to read.
        records: Records that were read of it.
        has_backlog: Whether records wait behind it.
        now_s: The time, monotonic seconds.
    """
    quiet_since_s = progress.quiet_since_s
    if not has_backlog and (quiet_since_s is None or records):
        quiet_since_s = now_s
    after = Progress(progress.began_s, progress.slices + (not is_empty), has_backlog, quiet_since_s)
    return after, next_action(after, limits, now_s)


def next_action(progress: Progress, limits: RunLimits, now_s: float) -> Action:
    """What to do with a unit of which at least one slice was taken and nothing new is known.

    Args:
        progress: How far it is.
        limits: How many slices to take.
        now_s: The time, monotonic seconds.
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
