"""What a member may say it owns, and until when. Pure: no broker, and the clock is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kpipe_platform.kafka.offsets import Partition

NONE: frozenset[Partition] = frozenset()
"""No partitions."""

# librdkafka's name, in its statistics, of the connection that carries the group's requests and nothing else.
_COORDINATOR = "GroupCoordinator"
# The requests whose answers prove a session. Statistics do not count KIP-848's heartbeat by name; so an answer
# is taken for a session's if it belongs to no request with another name.
_SESSION_REQUESTS = ("Heartbeat", "JoinGroup", "SyncGroup", "ConsumerGroupHeartbeat")


class CoordinatorContact:
    """Reads from librdkafka's statistics when the coordinator was last known to count this member in.

    The coordinator's session timer starts when it takes a heartbeat in, so what counts is when the heartbeat was
    sent, not when its answer arrived. Statistics do not have that time; but an answer that came between two looks,
    with nothing in flight at the first, was asked for after the first. The time of that first look is the contact:
    never later than the truth.

    Args:
        clock: Seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._quiet: tuple[float, float, int] | None = None

    def observe(self, statistics: Mapping[str, Any]) -> float | None:
        """Take one statistics document in.

        Returns:
            The new time of contact by the clock; None if this document proves none.
        """
        coordinator = statistics.get("brokers", {}).get(_COORDINATOR)
        if coordinator is None or any(coordinator[n] for n in ("waitresp_cnt", "outbuf_cnt", "outbuf_msg_cnt")):
            return None
        made, seen = float(statistics["ts"]) / 1e6, self._clock()
        others = sum(count for name, count in coordinator["req"].items() if name not in _SESSION_REQUESTS)
        answers = coordinator["rx"] - others
        before, self._quiet = self._quiet, (made, seen, answers)
        if before is None or answers <= before[2]:
            return None
        # Documents wait in a queue. One that was made before this process was stopped and is read after it went on
        # must not renew anything: hence the earlier of the two ways to tell how long ago the first look was.
        return min(before[1], seen - (made - before[0]))


class Ledger:
    """Which partitions are owned, draining and lost; safe to use from several threads.

    Args:
        trust_s: How long an assignment is believed after the last contact with the coordinator, seconds.
        clock: Seconds, never going back.
    """

    def __init__(self, trust_s: float, clock: Callable[[], float]) -> None:
        self._trust_s = trust_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held: frozenset[Partition] = NONE
        self._draining: frozenset[Partition] = NONE
        self._lost: frozenset[Partition] = NONE
        self._contact: float | None = None
        self._joined = False
        self._lapsed = False
        self._returning = False
        self.changes = 0

    def assigned(self, partitions: Iterable[Partition]) -> None:
        """The coordinator gave these."""
        with self._lock:
            given = frozenset(partitions)
            self._held |= given
            self._lost -= given
            self._joined = True
            self.changes += 1

    def drain(self, partitions: Iterable[Partition]) -> None:
        """These are to be given away: not owned from now on, and not free yet."""
        with self._lock:
            leaving = frozenset(partitions)
            self._held -= leaving
            self._draining |= leaving

    def yielded(self, partitions: Iterable[Partition]) -> None:
        """These were given away."""
        with self._lock:
            left = frozenset(partitions)
            self._held -= left
            self._draining -= left
            self.changes += 1

    def lose(self, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """These were taken away. Returns those that were not lost before."""
        with self._lock:
            gone = frozenset(partitions)
            new = gone - self._lost
            self._held -= gone
            self._draining -= gone
            self._lost |= gone
            self.changes += 1
            return new

    def contact(self, at: float) -> frozenset[Partition]:
        """The coordinator counted this member in at that time. Returns partitions that are owned again by this."""
        with self._lock:
            if self._contact is not None and at <= self._contact:
                return NONE
            # The first answer after a silence may be that the member was struck off, which the client says in a
            # message of its own. So it takes two to believe again.
            if self._lapsed and not self._returning:
                self._returning = True
                return NONE
            self._contact = at
            self._joined = True
            if not self._lapsed or not self._trusted():
                return NONE
            self._lapsed = self._returning = False
            self._lost -= self._held
            return self._held

    def expire(self) -> frozenset[Partition]:
        """Give up what the silence has made doubtful. Returns partitions that are lost by this."""
        with self._lock:
            if self._lapsed or self._contact is None or self._trusted():
                return NONE
            self._lapsed, self._returning = True, False
            self._lost |= self._held | self._draining
            return self._held | self._draining

    def start_over(self) -> frozenset[Partition]:
        """The member begins anew: nothing is owned. Returns partitions that are lost by this."""
        with self._lock:
            gone = (self._held | self._draining) - self._lost
            self._lost |= gone
            self._held = self._draining = NONE
            self._contact, self._joined, self._lapsed, self._returning = None, False, False, False
            return gone

    def owned(self) -> frozenset[Partition] | None:
        """What is owned at this moment; None before the member was let in."""
        with self._lock:
            if not self._joined or self._contact is None:
                return None
            return self._held if self._trusted() and not self._lapsed else NONE

    def is_trusted(self) -> bool:
        """Whether the coordinator answered lately enough."""
        with self._lock:
            return self._trusted() and not self._lapsed

    @property
    def draining(self) -> frozenset[Partition]:
        """Partitions that wait for their work in flight."""
        with self._lock:
            return self._draining

    @property
    def lost(self) -> frozenset[Partition]:
        """Partitions that were taken away, or are in doubt, and were not assigned again since."""
        with self._lock:
            return self._lost

    def since_contact_s(self) -> float | None:
        """Seconds since the coordinator last counted this member in; None before."""
        with self._lock:
            return None if self._contact is None else self._clock() - self._contact

    def _trusted(self) -> bool:
        return self._contact is not None and self._clock() - self._contact < self._trust_s
