"""Which partitions this deployment may work on, where several deployments share the topics of one asset.

A member of the side group ``{group}.owners`` is given partitions by Kafka's own group coordinator. It reads no
records and stores no offsets; the asset's own group is not touched.

What it gives is economy, not safety: the compare of the slice protocol keeps a record from being lost or written
twice, whoever believes to own its partition. Ownership keeps two deployments from starting the same work.

Source: KIP-429, KIP-345, KIP-848.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from kpipe_platform.kafka.offsets import Partition
from kpipe_platform.kafka.ownership_drain import InFlight
from kpipe_platform.kafka.ownership_events import (
    Listener,
    OwnershipEvent,
    OwnershipEventKind,
    OwnershipState,
    OwnershipStatus,
)
from kpipe_platform.kafka.ownership_ledger import NONE
from kpipe_platform.kafka.ownership_member import Member
from kpipe_platform.kafka.ownership_registry import Registry
from kpipe_platform.kafka.ownership_settings import OwnershipProtocol, OwnershipRebalance, OwnershipSettings
from kpipe_platform.kafka.settings import ConnectionSettings
from kpipe_platform.kafka.whereabouts import instance_name, worker_name

__all__ = [
    "ConsumerGroupOwnership",
    "InFlight",
    "OwnershipEvent",
    "OwnershipEventKind",
    "OwnershipProtocol",
    "OwnershipRebalance",
    "OwnershipState",
    "OwnershipStatus",
    "ownership_of",
]


class ConsumerGroupOwnership:
    """A deployment's membership in the owners' group of an asset.

    Nothing connects before the first question (`owned`, `state` or `start`). The member lives on a daemon thread
    until `close`; in a forked child the first question starts a member of the child's own.

    Args:
        settings: How to reach the brokers.
        group: The consumer group of the asset; the member joins ``{group}.owners``.
        topics: Topics whose partitions are shared.
        protocol: ``"classic"``, or ``"consumer"`` for KIP-848 (brokers 4.0 and later).
        instance_id: Name of this deployment for static membership; None: every start is a new member.
        session_timeout_s: How long this member believes in its partitions without an answer of the coordinator,
            seconds, 10 by default. With ``classic`` also how long the coordinator waits for a member that died;
            with ``consumer`` that is the brokers' ``group.consumer.session.timeout.ms``, and must not be shorter.
        rebalance_mode: ``"drain_and_yield"`` or ``"stop_accepting_new_work_and_yield"``.
        drain_deadline_s: How long a drain waits for work in flight, seconds, 30 by default.
        in_flight: Which of the given partitions have work in flight; asked several times a second while a drain
            lasts, on the member's thread. None: none has.
        listener: Called with every event, on the member's threads; it must return quickly.
        clock: Seconds, never going back.

    Raises:
        ConfigError: A value makes no sense.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        group: str,
        topics: Sequence[str],
        *,
        protocol: OwnershipProtocol = "classic",
        instance_id: str | None = None,
        session_timeout_s: float = 10.0,
        rebalance_mode: OwnershipRebalance = "drain_and_yield",
        drain_deadline_s: float = 30.0,
        in_flight: InFlight | None = None,
        listener: Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = OwnershipSettings(
            settings,
            group,
            tuple(dict.fromkeys(topics)),
            protocol,
            instance_id,
            session_timeout_s,
            rebalance_mode,
            drain_deadline_s,
        )
        self._in_flight = in_flight
        self._listener = listener
        self._clock = clock
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._member: Member | None = None
        self._inherited: list[Member] = []

    @property
    def group(self) -> str:
        """The asset's consumer group."""
        return self.settings.group

    @property
    def instance(self) -> str:
        """Name of this deployment: the ``instance_id``, or the host's name."""
        return instance_name(self.settings.instance_id)

    @property
    def worker(self) -> str:
        """Name of this process within its deployment."""
        return worker_name(self.instance)

    @property
    def is_closed(self) -> bool:
        """Whether the member of this process was closed."""
        with self._exclusive():
            return self._member is not None and self._member.is_stopping

    @property
    def lease(self) -> str | None:
        """What gave this deployment its partitions: ``{group}.owners/{member id}/{number}``; None without any.

        The number counts the changes of this member's assignment. librdkafka does not tell the group's generation.
        """
        return self.state().lease

    def start(self) -> None:
        """Join in the background, unless that was done already."""
        self._running()

    def react(self, *, in_flight: InFlight | None, listener: Listener | None) -> None:
        """Replace what was given as ``in_flight`` and ``listener``, in the running member too."""
        self._in_flight, self._listener = in_flight, listener
        member = self._member
        if member is not None and self._pid == os.getpid():
            member.in_flight, member.reporter.listener = in_flight, listener

    def owned(self) -> frozenset[Partition] | None:
        """The partitions that this deployment may ask work for, at this moment.

        Returns:
            None before the coordinator let this member in, and after `close`. The empty set where others own all,
            or where the coordinator has been silent for longer than the session timeout: then somebody else may
            own them already.

        Raises:
            AuthenticationFailedError: The brokers refuse the credentials.
            AuthorizationFailedError: An ACL denies the group or a topic.
            TopicNotFoundError: A topic does not exist.
            FencedError: Another process joined under the same ``instance_id``.
            KpipeError: Another reason for which this member is not let in.
        """
        member = self._running()
        problem = member.problems.current
        if problem is not None:
            # Raised as often as it is asked for: each time without the traceback of the last.
            raise problem.with_traceback(None)
        return None if member.is_stopping else member.ledger.owned()

    def state(self) -> OwnershipState:
        """A snapshot for people and for reports. Raises nothing: a problem is part of it."""
        member = self._running()
        ledger, problem = member.ledger, member.problems.current
        owned = None if problem is not None or member.is_stopping else ledger.owned()
        status: OwnershipStatus
        if member.is_stopping:
            status = "closed"
        elif problem is not None:
            status = "failed"
        elif owned is None:
            status = "joining"
        else:
            status = "member" if ledger.is_trusted() else "uncertain"
        lease = f"{self.settings.owners_group}/{member.reporter.member_id}/{ledger.changes}"
        return OwnershipState(
            status=status,
            owned=owned or NONE,
            draining=ledger.draining,
            lost=ledger.lost,
            member_id=member.reporter.member_id or None,
            lease=lease if status == "member" else None,
            since_contact_s=ledger.since_contact_s(),
            problem=problem,
        )

    def close(self, *, drain: bool = True) -> None:
        """Leave the group, so that the others take over at once; nothing happens if it was never joined.

        A static member (``instance_id``) of a classic group does not leave: its partitions wait for its return until
        the session timeout.

        Args:
            drain: Whether ``drain_and_yield`` waits for work in flight first; False yields at once.
        """
        with self._exclusive():
            member = self._member
        if member is not None:
            member.stop(drain=drain)

    def __enter__(self) -> ConsumerGroupOwnership:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> Member:
        with self._exclusive():
            if self._member is None:
                member = Member(self.settings, self._clock)
                member.in_flight, member.reporter.listener = self._in_flight, self._listener
                member.start()
                self._member = member
            return self._member

    def _exclusive(self) -> threading.Lock:
        if self._pid != os.getpid():
            # In a forked child: the parent's member has no thread here, and its lock may be held by one of the
            # parent's. It is kept, because librdkafka cannot take its handle apart without its threads.
            if self._member is not None:
                self._inherited.append(self._member)
            self._lock, self._member, self._pid = threading.Lock(), None, os.getpid()
        return self._lock


_registry: Registry[ConsumerGroupOwnership] = Registry(lambda found: found.close(drain=False))


def ownership_of(
    settings: ConnectionSettings,
    group: str,
    topics: Sequence[str],
    *,
    protocol: OwnershipProtocol = "classic",
    instance_id: str | None = None,
    session_timeout_s: float = 10.0,
    rebalance_mode: OwnershipRebalance = "drain_and_yield",
    drain_deadline_s: float = 30.0,
    in_flight: InFlight | None = None,
    listener: Listener | None = None,
) -> ConsumerGroupOwnership:
    """This process's member for a group: made at the first call, found again by each later one.

    So that each tick of a sensor, which keeps nothing itself, finds the member that runs. A call with another
    ``in_flight`` or ``listener`` replaces these; one with other settings replaces the member. The member leaves when
    the process ends in order, without a drain.

    Args:
        settings: How to reach the brokers.
        group: The consumer group of the asset.
        topics: Topics whose partitions are shared.
        protocol: See `ConsumerGroupOwnership`, as for the rest.
        instance_id: Name of this deployment for static membership.
        session_timeout_s: How long to believe in an assignment without an answer, seconds.
        rebalance_mode: What happens on revocation.
        drain_deadline_s: How long a drain waits, seconds.
        in_flight: Which of the given partitions have work in flight.
        listener: Called with every event.

    Raises:
        ConfigError: A value makes no sense.
    """
    made = ConsumerGroupOwnership(
        settings,
        group,
        topics,
        protocol=protocol,
        instance_id=instance_id,
        session_timeout_s=session_timeout_s,
        rebalance_mode=rebalance_mode,
        drain_deadline_s=drain_deadline_s,
        in_flight=in_flight,
        listener=listener,
    )
    found = _registry.find(
        (settings.bootstrap_servers, group),
        made,
        is_same=lambda running: running.settings == made.settings and not running.is_closed,
    )
    if found is not made:
        found.react(in_flight=in_flight, listener=listener)
    return found
