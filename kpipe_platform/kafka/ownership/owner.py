"""A deployment's membership in the owners' group of an asset: the interface for users and sensors.

Kafka's group coordinator assigns partitions to the members of the side group ``{group}.owners``. A member reads no
records and stores no offsets, and it does not affect the asset's own group.

Ownership avoids duplicate work; data safety does not depend on it. The slice protocol compares offsets, so no record
is lost or written twice, whichever deployment processes its partition (docs/adr/0002, docs/adr/0014).

Source: KIP-429, KIP-345, KIP-848.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.instance_names import instance_name, worker_name
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.events import Callbacks, InFlight, Listener
from kpipe_platform.kafka.ownership.member import Member
from kpipe_platform.kafka.ownership.settings import OwnershipProtocol, OwnershipRebalance, OwnershipSettings
from kpipe_platform.kafka.ownership.status import NONE, OwnershipState, OwnershipStatus


class ConsumerGroupOwnership:
    """A deployment's membership in the owners' group of an asset.

    The member connects at the first call of `owned`, `state` or `start`. It runs on a daemon thread until `close`. In
    a forked child process, the first such call starts a new member.

    Args:
        connection: Connection settings.
        group: The consumer group of the asset; the member joins ``{group}.owners``.
        topics: Topics whose partitions are shared.
        protocol: ``"classic"``, or ``"consumer"`` for KIP-848 (brokers 4.0 and later).
        instance_id: Name of this deployment for static membership; None makes each start a new member.
        session_timeout_s: With ``classic``, how long an unresponsive member keeps its partitions, seconds, 10 by
            default. With ``consumer``, the brokers' ``group.consumer.session.timeout.ms`` applies instead.
        rebalance_mode: ``"drain_and_yield"`` or ``"stop_accepting_new_work_and_yield"``.
        drain_deadline_s: How long a drain waits for work in flight, seconds, 30 by default.
        in_flight: Returns those of the given partitions that have work in flight. Called several times per second
            during a drain, on the member's thread. None if none ever has.
        listener: Called with every event, on the member's thread; it must return quickly.
        is_needed: Returns whether the member should stay in the group. Called every few seconds on the member's
            thread; when it returns False, the member drains and leaves. None to stay until `close`.
        clock: Monotonic clock in seconds.

    Raises:
        ConfigError: A value is invalid.
    """

    def __init__(
        self,
        connection: ConnectionSettings,
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
        is_needed: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = OwnershipSettings(
            connection,
            group,
            tuple(dict.fromkeys(topics)),
            protocol,
            instance_id,
            session_timeout_s,
            rebalance_mode,
            drain_deadline_s,
        )
        self.callbacks = Callbacks(in_flight, listener, is_needed)
        self._clock = clock
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._member: Member | None = None

    @property
    def group(self) -> str:
        """The asset's consumer group."""
        return self.settings.group

    @property
    def instance(self) -> str:
        """Name of this deployment: the ``instance_id``, or the host name."""
        return instance_name(self.settings.instance_id)

    @property
    def worker(self) -> str:
        """Name of this process within its deployment."""
        return worker_name(self.instance)

    @property
    def is_closed(self) -> bool:
        """Whether this process's member is leaving or has left the group."""
        with self._exclusive():
            return self._member is not None and self._member.is_stopping

    @property
    def lease(self) -> str | None:
        """Identifier of the current assignment, ``{group}.owners/{member id}/{number}``; None unless a member.

        The number counts the changes of this member's assignment, because librdkafka does not expose the group's
        generation.
        """
        return self.state().lease

    def start(self) -> None:
        """Join in the background. Does nothing if the member has already started."""
        self._running()

    def owned(self) -> frozenset[Partition] | None:
        """Return the partitions on which this deployment may start new work now.

        Returns:
            None before this member has joined, and after `close`. The empty set if other members own all partitions,
            or if this member was removed from the group and has not rejoined.

        Raises:
            AuthenticationFailedError: The brokers refuse the credentials.
            AuthorizationFailedError: An ACL denies the group or a topic.
            TopicNotFoundError: A topic does not exist.
            FencedError: Another process joined under the same ``instance_id``.
            KpipeError: This member cannot join for another reason.
        """
        member = self._running()
        if (problem := member.problem) is not None:
            # The same error is raised at every call, so drop the traceback of the previous one.
            raise problem.with_traceback(None)
        assignment = member.assignment
        if member.is_stopping or not (assignment.joined or assignment.lost):
            return None
        return assignment.owned

    def state(self) -> OwnershipState:
        """Return a snapshot for status displays and reports. Never raises; the snapshot contains any problem."""
        member = self._running()
        assignment, problem = member.assignment, member.problem
        status: OwnershipStatus
        if member.is_stopping:
            status = "closed"
        elif problem is not None:
            status = "failed"
        elif assignment.joined:
            status = "member"
        else:
            status = "uncertain" if assignment.lost else "joining"
        lease = f"{self.settings.owners_group}/{member.member_id}/{assignment.changes}"
        return OwnershipState(
            status=status,
            owned=assignment.owned if status == "member" else NONE,
            draining=assignment.draining,
            lost=assignment.lost,
            member_id=member.member_id or None,
            lease=lease if status == "member" else None,
            problem=problem,
        )

    def close(self, *, drain: bool = True) -> None:
        """Leave the group, so that other members take over at once. Does nothing if the member never started.

        A static member (``instance_id``) of a classic group does not leave: its partitions stay reserved for it until
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
                self._member = Member(self.settings, lambda: self.callbacks, self._clock)
                self._member.start()
            return self._member

    def _exclusive(self) -> threading.Lock:
        if self._pid != os.getpid():
            # In a forked child, the parent's member has no thread, and a parent thread may have held the lock.
            self._lock, self._member, self._pid = threading.Lock(), None, os.getpid()
        return self._lock
