"""One membership in the owners' group: a consumer that reads no records, on a thread of its own.

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
from kpipe_platform.kafka.client.calls import kafka_error, translate
from kpipe_platform.kafka.client.clients import REFUSALS, Clients
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.drain import drain
from kpipe_platform.kafka.ownership.errors import fatal_cause, member_error
from kpipe_platform.kafka.ownership.events import Callbacks, OwnershipEvent, OwnershipEventKind, publish
from kpipe_platform.kafka.ownership.settings import OwnershipSettings
from kpipe_platform.kafka.ownership.status import NONE, Assignment

logger = logging.getLogger(__name__)

_TOPIC_CODES = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
)
# How long a poll waits, seconds: the delay of a close.
_POLL_S = 0.2
# How long to wait after a client that failed for good before the next one starts, seconds.
_RESTART_S = 5.0
# Time between two checks of the topics and of whether the member is needed, seconds; the shorter one while the member
# is not in the group or has a problem. And how long one question may take.
_CHECK_S = 5.0
_CHECK_SOON_S = 1.0
_CHECK_DEADLINE_S = 2.0


class Member:
    """One membership, from `start` to `stop`.

    The member's thread alone changes ``assignment``, and other threads read it: hence one value, and no lock.

    Args:
        settings: How to take part.
        callbacks: Gives the current callbacks.
        clock: Seconds, never going back.
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
        # A daemon: to the coordinator a process that ends without closing is a member that died.
        self._thread = threading.Thread(target=self._run, name=f"kpipe-owner-{settings.group}", daemon=True)

    @property
    def is_stopping(self) -> bool:
        """Whether the member leaves or has left."""
        return self._stopping.is_set()

    @property
    def problem(self) -> KpipeError | None:
        """Why the member can own nothing, or not all of its topics; None where there is no such reason.

        A broker that is away is no problem in this sense: the client connects again by itself.
        """
        return self._error or next(iter(self._topic_errors.values()), None)

    def start(self) -> None:
        """Join, in the background."""
        self._thread.start()

    def stop(self, *, drain: bool) -> None:
        """Leave, and wait until that is done.

        Args:
            drain: Whether to wait for work in flight, where the rebalance mode says so.
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
            except Exception as error:  # the last place of this thread; `owned` raises what is kept here
                logger.exception("The owner in group %s failed", self.settings.owners_group)
                message = f"the owner in group {self.settings.owners_group} failed: {type(error).__name__}: {error}"
                self._error = TerminalError(message, group=self.settings.owners_group)
            if self.is_stopping:
                return
            self._lose("the member failed")
            # A fenced member must not come back by itself: it would fence the one that took its name.
            if isinstance(self._error, FencedError) or self._stopping.wait(_RESTART_S):
                return

    def _take_part(self) -> None:
        """One client's time in the group."""
        self._is_fatal, self.member_id = False, ""
        quick = replace(self.settings.connection, request_timeout_s=_CHECK_DEADLINE_S)
        consumer = Consumer({**self.settings.consumer_config(), "error_cb": self._on_error})
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
        # No record is wanted. One may come when a fetch was faster than the pause.
        message: Message | None = consumer.poll(timeout_s)
        error = None if message is None else message.error()
        if error is not None:
            self._note(error)
        self.member_id = consumer.memberid() or self.member_id

    def _check(self, consumer: Consumer, clients: Clients) -> None:
        is_needed = self._callbacks().is_needed
        if is_needed is not None and not is_needed():
            logger.warning("Owners of %s: this deployment works no longer, and leaves", self.settings.group)
            self._stopping.set()
            return
        errors = {topic: self._topic_error(consumer, topic) for topic in self.settings.topics}
        self._topic_errors = {topic: error for topic, error in errors.items() if error is not None}
        if not self.assignment.joined and self.settings.protocol == "consumer":
            self._probe_membership(clients)

    def _topic_error(self, consumer: Consumer, topic: str) -> KpipeError | None:
        """Why a topic cannot be shared. With KIP-848 the client does not report a topic that is missing."""
        try:
            error = consumer.list_topics(topic, timeout=_CHECK_DEADLINE_S).topics[topic].error
        except KafkaException as exception:
            logger.info("Owners of %s: topic %s: %s", self.settings.group, topic, kafka_error(exception).name())
            return self._topic_errors.get(topic)
        if error is None or error.code() not in _TOPIC_CODES:
            return None
        return translate(error, self.settings.connection, f"share topic {topic}", topic=topic)

    def _probe_membership(self, clients: Clients) -> None:
        """Ask the coordinator for this member. With KIP-848 the client is silent where there are no partitions."""
        try:
            members = group_members(clients, self.settings.owners_group)
        except KpipeError as error:
            logger.info("Owners of %s: %s", self.settings.group, error.message)
            return
        if any(member.member_id == self.member_id for member in members):
            self._assign(NONE)

    # --------------------------------------------------------------------- callbacks, on the polling thread

    def _on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        # An empty assignment has to be acknowledged too.
        consumer.incremental_assign(given)
        if given:
            consumer.pause(given)
        self.member_id = consumer.memberid() or ""
        self._assign(_partitions(given))

    def _on_revoke(self, consumer: Consumer, leaving: list[TopicPartition]) -> None:
        partitions = _partitions(leaving)
        left, reason = NONE, "given to another deployment"
        if self._drained_for_close is not None:
            left, reason = self._drained_for_close
        elif partitions and self._drains:
            # The coordinator waits for the end of this callback; the client sends heartbeats meanwhile.
            left, reason = self._drain(partitions, self._hurry.wait)
        consumer.incremental_unassign(leaving)
        self.assignment = self.assignment.revoke(partitions)
        self._publish("revoked", partitions, reason, left & partitions)

    def _on_lost(self, consumer: Consumer, gone: list[TopicPartition]) -> None:
        consumer.incremental_unassign(gone)
        self._lose("the coordinator removed this member, or did not answer within the session timeout")

    def _on_error(self, error: KafkaError) -> None:
        # Others are of connections that come and go.
        if error.code() in REFUSALS or error.fatal():
            self._note(error)

    def _note(self, error: KafkaError) -> None:
        if error.code() in _TOPIC_CODES:
            # The next check finds out which topic it is, and when the problem is over.
            return
        cause = fatal_cause(error)
        found = member_error(cause, self.settings)
        self._is_fatal = self._is_fatal or cause.fatal() or error.code() == KafkaError._FATAL
        # What does not keep the member out of the group, such as one broker of several, passes without a trace.
        if self._is_fatal or (isinstance(found, TerminalError) and not self.assignment.joined):
            self._error = found
        else:
            logger.info("Owners of %s: %s", self.settings.group, found.message)

    # ------------------------------------------------------------------------------------------- draining

    @property
    def _drains(self) -> bool:
        return self.settings.rebalance_mode == "drain_and_yield"

    def _drain_before_close(self, consumer: Consumer) -> None:
        """Drain while still polling: a client that closes sends no heartbeats, whatever its callback waits for."""
        owned = self.assignment.owned
        self._drained_for_close = NONE, "this deployment leaves"
        if owned and self._drains and not self._hurry.is_set():
            self._drained_for_close = None
            self._drained_for_close = self._drain(owned, lambda wait_s: self._poll(consumer, min(wait_s, _POLL_S)))

    def _drain(
        self, partitions: frozenset[Partition], wait: Callable[[float], object]
    ) -> tuple[frozenset[Partition], str]:
        self.assignment = self.assignment.drain(partitions)
        self._publish("draining", partitions, "to be given away once no work is in flight")
        left, why = drain(
            partitions,
            self._callbacks().in_flight,
            deadline_s=self.settings.drain_deadline_s,
            clock=self._clock,
            wait=wait,
            why_stop=self._why_yield_now,
        )
        if left:
            logger.warning("Owners of %s: %s: yields %s", self.settings.group, why, sorted(left))
        else:
            self._publish("drained", partitions, why)
        return left, why

    def _why_yield_now(self) -> str | None:
        if self._hurry.is_set():
            return "this deployment leaves at once"
        if not self.assignment.draining:
            return "the partitions were lost"
        return None

    # ------------------------------------------------------------------------------------------ reporting

    def _assign(self, partitions: frozenset[Partition]) -> None:
        self._error = None
        self.assignment = self.assignment.assign(partitions)
        self._publish("assigned", partitions, "given by the coordinator")

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
