"""Which partitions a tick finds in another state than the last one did, as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kpipe_platform.observability.events import PartitionEvent, PartitionEventKind, shortened
from kpipe_platform.partitions.pauses import Pause
from kpipe_platform.sensors.admission import Candidate, Decision, State
from kpipe_platform.sensors.candidates import WHOLE, Target
from kpipe_platform.sensors.cursor import Cursor

PAUSED, SATURATED = "paused", "saturated"
"""Names in the cursor."""


@dataclass(frozen=True)
class Transitions:
    """What changed.

    Args:
        saturated: Partitions that are due and must wait from now on.
        pauses: Partitions that were paused or resumed. Whoever did it has logged it, and could not know the asset.
        told: What the cursor is to remember.
    """

    saturated: tuple[PartitionEvent, ...]
    pauses: tuple[PartitionEvent, ...]
    told: Mapping[str, frozenset[int]]


def transitions(
    target: Target,
    candidates: Sequence[Candidate],
    decision: Decision,
    cursor: Cursor,
    find_pauses: Callable[[str], Mapping[int, Pause]],
    *,
    clock: Callable[[], float] = time.time,
) -> Transitions:
    """Compare a tick with what was told before.

    Args:
        target: The asset.
        candidates: The partitions.
        decision: Their states.
        cursor: What the last tick left.
        find_pauses: The pauses of a topic; asked only where a partition was paused since.
        clock: Seconds since the epoch; injected for tests.
    """
    by_number = {WHOLE if c.number is None else c.number: c for c in candidates}
    now = {
        SATURATED: [n for n, c in by_number.items() if decision.states[c.number] is State.SATURATED],
        PAUSED: [n for n, c in by_number.items() if c.paused],
    }
    new, told = {}, {}
    for state, numbers in now.items():
        before = cursor.told.get(state, frozenset())
        kept = before.intersection(numbers)
        new[state] = [n for n in numbers if n not in before][: cursor.room_to_tell(len(kept))]
        told[state] = kept.union(new[state])
    resumed = [n for n in sorted(cursor.told.get(PAUSED, frozenset())) if n in by_number and n not in told[PAUSED]]
    event = partial(PartitionEvent, group=target.group, asset=target.key.to_user_string(), at_ms=int(clock() * 1000))
    saturated = [
        event(
            PartitionEventKind.SATURATED,
            planned.range.topic,
            planned.range.partition,
            start=planned.range.start,
            end=planned.end,
            reason="as many partitions are worked on as the bounds allow",
        )
        for n in new[SATURATED]
        for planned in by_number[n].ranges
        if planned.end > planned.range.start
    ]
    found = {topic: find_pauses(topic) for topic in target.topics} if new[PAUSED] else {}
    pauses = [
        event(
            PartitionEventKind.PAUSED,
            topic,
            number,
            at_ms=pause.since_ms,
            reason=None if pause.reason is None else shortened(pause.reason),
        )
        for n in new[PAUSED]
        for topic in target.topics
        for number, pause in sorted(found[topic].items())
        if n in (number, WHOLE)
    ]
    pauses += [
        event(PartitionEventKind.RESUMED, topic, None if n == WHOLE else n) for n in resumed for topic in target.topics
    ]
    return Transitions(tuple(saturated), tuple(pauses), told)
