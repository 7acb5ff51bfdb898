"""One membership in the owners' group: a consumer on its own thread that reads no records.

Source: librdkafka, ``rd_kafka_incremental_assign`` and ``rd_kafka_incremental_unassign``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kpipe_platform.errors import FencedError, KpipeError, TerminalError
from kpipe_platform.kafka.admin.groups import group_members
from kpipe_platform.kafka.client._compat import fatal_cause, is_refused
from kpipe_platform.kafka.client.calls import kafka_error, translate
from kpipe_platform.kafka.client.clients import Clients, new_client
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.drain import drain
from kpipe_platform.kafka.ownership.errors import member_error
from kpipe_platform.kafka.ownership.events import Callbacks, OwnershipEvent, OwnershipEventKind, publish
from kpipe_platform.kafka.ownership.settings import OwnershipSettings
from kpipe_platform.kafka.ownership.status import NONE, Assignment

logger = logging.getLogger(__name__)

_TOPIC_CODES = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
)
# Timeout of one poll, seconds; a close waits at most this long for it.
_POLL_S = 0.2
# Wait after a client's fatal failure before the next client starts, seconds.
_RESTART_S = 5.0
# Interval between two checks of the topics and of is_needed, seconds. The shorter one applies while the member is not
# in the group or has a problem. The deadline is that of one request.
_CHECK_S = 5.0
_CHECK_SOON_S = 1.0
_CHECK_DEADLINE_S = 2.0


class Member:
    """One membership, from `start` to `stop`.

    Only the member's thread changes ``assignment``, and other threads read it, so it is one immutable value without a
    lock.

    Args:
        settings: Settings of the member.
        callbacks: Returns the current callbacks.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, settings: OwnershipSettings, callbacks: Callable[[], Callbacks], clock: Callable[[], float]
    ) -> None:
        self.settings = settings
        self.assignment = Assignment()
        self.member_id = ""
        self._callbacks = callbacks
        self._clock = clock
        self._error: KpipeError | None = None
        self._topic_errors: dict[str, KpipeError] = {}
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._is_fatal = False
        self._drained_for_close: tuple[frozenset[Partition], str] | None = None
        # A daemon thread: if the process ends without closing, the coordinator removes the member as if it had died.
        self._thread = threading.Thread(target=self._run, name=f"kpipe-owner-{settings.group}", daemon=True)

    @property
    def is_stopping(self) -> bool:
        """Whether the member is leaving or has left."""
        return self._stopping.is_set()

    @property
    def problem(self) -> KpipeError | None:
        """Why the member cannot own partitions of all or some topics; None if there is no problem.

        An unreachable broker does not count, because the client reconnects automatically.
        """
        return self._error or next(iter(self._topic_errors.values()), None)

    def start(self) -> None:
        """Join, in the background."""
        self._thread.start()

    def stop(self, *, drain: bool) -> None:
        """Leave the group, and wait until the member has left.

        Args:
            drain: Whether to wait for work in flight, if the rebalance mode requires it.
        """
        if not drain:
            self._hurry.set()
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # -------------------------------------------------------------------------------- the member's thread

    def _run(self) -> None:
        while True:
            try:
                self._take_part()
            except KafkaException as exception:
                self._error = member_error(kafka_error(exception), self.settings)
            except KpipeError as error:
                self._error = error
            except Exception as error:  # top level of this thread; `owned` raises the stored error
                logger.exception("The member of group %s failed", self.settings.owners_group)
                message = f"the member of group {self.settings.owners_group} failed: {type(error).__name__}: {error}"
                self._error = TerminalError(message, group=self.settings.owners_group)
            if self.is_stopping:
                return
            self._lose("the member failed")
            # A fenced member must not rejoin: it would fence the member that took over its instance_id.
            if isinstance(self._error, FencedError) or self._stopping.wait(_RESTART_S):
                return

    def _take_part(self) -> None:
        """Run one client until the member stops or the client fails."""
        self._is_fatal, self.member_id = False, ""
        quick = replace(self.settings.connection, request_timeout_s=_CHECK_DEADLINE_S)
        config = {**self.settings.consumer_config(), "error_cb": self._on_error}
        consumer = new_client(Consumer, config, self.settings.connection)
        try:
            with Clients(quick) as clients:
                consumer.subscribe(
                    list(self.settings.topics),
                    on_assign=self._on_assign,
                    on_revoke=self._on_revoke,
                    on_lost=self._on_lost,
                )
                next_check_s = self._clock() + _CHECK_SOON_S
                while not self.is_stopping and not self._is_fatal:
                    self._poll(consumer, _POLL_S)
                    if self._clock() >= next_check_s:
                        self._check(consumer, clients)
                        is_well = self.assignment.joined and self.problem is None
                        next_check_s = self._clock() + (_CHECK_S if is_well else _CHECK_SOON_S)
            if self.is_stopping:
                self._drain_before_close(consumer)
        finally:
            consumer.close()

    def _poll(self, consumer: Consumer, timeout_s: float) -> None:
        # Records are ignored. One may arrive if a fetch completes before the partition is paused.
        message: Message | None = consumer.poll(timeout_s)
        error = None if message is None else message.error()
        if error is not None:
            self._note(error)
        self.member_id = consumer.memberid() or self.member_id

    def _check(self, consumer: Consumer, clients: Clients) -> None:
        is_needed = self._callbacks().is_needed
        if is_needed is not None and not is_needed():
            logger.warning(
                "Owners of %s: this deployment no longer processes partitions and leaves the group", self.settings.group
            )
            self._stopping.set()
            return
        errors = {topic: self._topic_error(consumer, topic) for topic in self.settings.topics}
        self._topic_errors = {topic: error for topic, error in errors.items() if error is not None}
        if not self.assignment.joined and self.settings.protocol == "consumer":
            self._probe_membership(clients)

    def _topic_error(self, consumer: Consumer, topic: str) -> KpipeError | None:
        """Return why a topic cannot be shared. With KIP-848, the client does not report a missing topic."""
        try:
            error = consumer.list_topics(topic, timeout=_CHECK_DEADLINE_S).topics[topic].error
        except KafkaException as exception:
            logger.info("Owners of %s: topic %s: %s", self.settings.group, topic, kafka_error(exception).name())
            return self._topic_errors.get(topic)
        if error is None or error.code() not in _TOPIC_CODES:
            return None
        return translate(
            error, self.settings.connection, f"join the owners of topic {topic}", needs="Read", topic=topic
        )

    def _probe_membership(self, clients: Clients) -> None:
        """Check that the group contains this member. With KIP-848, the client does not report an empty assignment."""
        try:
            members = group_members(clients, self.settings.owners_group)
        except KpipeError as error:
            logger.info("Owners of %s: %s", self.settings.group, error.message)
            return
        if any(member.member_id == self.member_id for member in members):
            self._assign(NONE)

    # --------------------------------------------------------------------- callbacks, on the polling thread

    def _on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        # An empty assignment must be acknowledged too.
        consumer.incremental_assign(given)
        if given:
            consumer.pause(given)
        self.member_id = consumer.memberid() or ""
        self._assign(_partitions(given))

    def _on_revoke(self, consumer: Consumer, leaving: list[TopicPartition]) -> None:
        partitions = _partitions(leaving)
        left, reason = NONE, "assigned to another deployment"
        if self._drained_for_close is not None:
            left, reason = self._drained_for_close
        elif partitions and self._drains:
            # The coordinator waits until this callback returns; the client keeps sending heartbeats.
            left, reason = self._drain(partitions, self._hurry.wait)
        consumer.incremental_unassign(leaving)
        self.assignment = self.assignment.revoke(partitions)
        self._publish("revoked", partitions, reason, left & partitions)

    def _on_lost(self, consumer: Consumer, gone: list[TopicPartition]) -> None:
        consumer.incremental_unassign(gone)
        self._lose("the coordinator removed this member, or did not answer within the session timeout")

    def _on_error(self, error: KafkaError) -> None:
        # Other errors are temporary connection failures.
        if is_refused(error) or error.fatal():
            self._note(error)

    def _note(self, error: KafkaError) -> None:
        if error.code() in _TOPIC_CODES:
            # The next check finds out which topic is affected, and when the problem is resolved.
            return
        cause = fatal_cause(error)
        problem = member_error(cause, self.settings)
        self._is_fatal = self._is_fatal or cause.fatal() or error.code() == KafkaError._FATAL
        # Errors that do not keep the member out of the group, such as one unreachable broker, are only logged.
        if self._is_fatal or (isinstance(problem, TerminalError) and not self.assignment.joined):
            self._error = problem
        else:
            logger.info("Owners of %s: %s", self.settings.group, problem.message)

    # ------------------------------------------------------------------------------------------- draining

    @property
    def _drains(self) -> bool:
        return self.settings.rebalance_mode == "drain_and_yield"

    def _drain_before_close(self, consumer: Consumer) -> None:
        """Drain while still polling, because a closing client sends no heartbeats while its callback waits."""
        owned = self.assignment.owned
        self._drained_for_close = NONE, "this deployment is leaving the group"
        if owned and self._drains and not self._hurry.is_set():
            self._drained_for_close = None
            self._drained_for_close = self._drain(owned, lambda wait_s: self._poll(consumer, min(wait_s, _POLL_S)))

    def _drain(
        self, partitions: frozenset[Partition], wait: Callable[[float], object]
    ) -> tuple[frozenset[Partition], str]:
        self.assignment = self.assignment.drain(partitions)
        self._publish("draining", partitions, "waiting for work in flight")
        left, why = drain(
            partitions,
            self._callbacks().in_flight,
            deadline_s=self.settings.drain_deadline_s,
            clock=self._clock,
            wait=wait,
            why_stop=self._why_yield_now,
        )
        if left:
            logger.warning("Owners of %s: %s; giving up %s", self.settings.group, why, sorted(left))
        else:
            self._publish("drained", partitions, why)
        return left, why

    def _why_yield_now(self) -> str | None:
        if self._hurry.is_set():
            return "this deployment is leaving without waiting for work in flight"
        if not self.assignment.draining:
            return "the partitions were lost"
        return None

    # ------------------------------------------------------------------------------------------ reporting

    def _assign(self, partitions: frozenset[Partition]) -> None:
        self._error = None
        self.assignment = self.assignment.assign(partitions)
        self._publish("assigned", partitions, "assigned by the coordinator")

    def _lose(self, reason: str) -> None:
        lost = self.assignment.owned | self.assignment.draining
        self.assignment = self.assignment.lose()
        self._publish("lost", lost, reason)

    def _publish(
        self,
        kind: OwnershipEventKind,
        partitions: frozenset[Partition],
        reason: str,
        in_flight: frozenset[Partition] = NONE,
    ) -> None:
        if partitions:
            event = OwnershipEvent(kind, partitions, self.settings.group, self.member_id, reason, in_flight)
            publish(event, self._callbacks().listener)


def _partitions(given: list[TopicPartition]) -> frozenset[Partition]:
    return frozenset((each.topic, each.partition) for each in given)
