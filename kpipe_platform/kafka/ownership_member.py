"""The member itself: a consumer in the owners' group on a thread of its own, which reads no records.

Source: librdkafka, ``rd_kafka_incremental_assign`` and ``rd_kafka_incremental_unassign``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kpipe_platform.errors import TerminalError
from kpipe_platform.kafka.calls import kafka_error, translate
from kpipe_platform.kafka.offsets import Partition
from kpipe_platform.kafka.ownership_drain import InFlight, drain
from kpipe_platform.kafka.ownership_events import Reporter
from kpipe_platform.kafka.ownership_ledger import NONE, CoordinatorContact, Ledger
from kpipe_platform.kafka.ownership_problems import Problems, is_refusal, stays_out
from kpipe_platform.kafka.ownership_settings import OwnershipSettings
from kpipe_platform.kafka.ownership_voucher import vouched_for

logger = logging.getLogger(__name__)

# How long a poll waits, seconds: the delay of a close.
_POLL_S = 0.2
# How long a client that failed for good is gone before another takes its place, seconds.
_AGAIN_S = 5.0
# How often topics are looked at of which nothing is owned: librdkafka does not tell of missing ones with KIP-848.
# Sooner where there is a problem, which may be over, and at the start. And for how long at most. Seconds.
_LOOK_S = 5.0
_LOOK_SOON_S = 1.0
_LOOK_DEADLINE_S = 2.0
# States, in librdkafka's statistics, of a classic client that is about to join: answers then may be refusals. With
# KIP-848 those end the client, and a member without partitions stays in the first of these states.
_OUTSIDE = ("init", "wait-metadata", "wait-join", "wait-sync")


class Member:
    """One membership in the owners' group, from `start` to `stop`.

    Args:
        settings: How to take part.
        clock: Seconds, never going back.
    """

    def __init__(self, settings: OwnershipSettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.ledger = Ledger(settings.session_timeout_s, clock)
        self.problems = Problems(settings)
        self.in_flight: InFlight | None = None
        self.reporter = Reporter(settings.group)
        self._clock = clock
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._is_fatal = False
        self._parting: tuple[frozenset[Partition], str] | None = None
        self._contact = CoordinatorContact(clock)
        name = f"kpipe-owner-{settings.group}"
        # A daemon: a process that ends without a word is treated by the coordinator as one that died.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

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
                self._be_a_member()
            except KafkaException as exception:
                settings = self.settings
                what = f"be an owner in group {settings.owners_group}"
                self.problems.keep(translate(exception, settings.connection, what, group=settings.owners_group))
            except Exception as error:  # the last place of this thread; `owned` raises what is kept here
                logger.exception("The owner in group %s failed", self.settings.owners_group)
                message = f"the owner in group {self.settings.owners_group} failed: {type(error).__name__}: {error}"
                self.problems.keep(TerminalError(message, group=self.settings.owners_group))
            lost = self.ledger.start_over()
            if lost and not self.is_stopping:
                self.reporter.tell("lost", lost, "the member failed")
            if self.is_stopping or stays_out(self.problems.current):
                return
            if self._stopping.wait(min(_AGAIN_S, self.settings.session_timeout_s)):
                return

    def _be_a_member(self) -> None:
        self._contact = CoordinatorContact(self._clock)
        config = {**self.settings.consumer_config(), "stats_cb": self._on_statistics, "error_cb": self._on_error}
        self._is_fatal, self.reporter.member_id = False, ""
        consumer = Consumer(config)
        try:
            consumer.subscribe(
                list(self.settings.topics),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            look_again_at = self._clock() + _LOOK_SOON_S
            while not self.is_stopping:
                self._take(consumer.poll(_POLL_S))
                if self._is_fatal:
                    return
                self._expire()
                if self._clock() >= look_again_at:
                    self._look_at_topics(consumer)
                    look_again_at = self._clock() + (_LOOK_SOON_S if self.problems.topics else _LOOK_S)
                self.reporter.member_id = self.reporter.member_id or consumer.memberid() or ""
            self._part(consumer)
        finally:
            consumer.close()

    def _take(self, message: Message | None) -> None:
        # A record is let go: none is wanted here. One may come when a fetch was faster than the pause.
        error = None if message is None else message.error()
        if message is not None and error is not None:
            self._note(error, message.topic())

    def _look_at_topics(self, consumer: Consumer) -> None:
        held = {topic for topic, _ in self.ledger.owned() or ()}
        troubled = self.problems.topics
        for topic in self.settings.topics:
            if topic in held and topic not in troubled:
                continue
            try:
                found = consumer.list_topics(topic, timeout=_LOOK_DEADLINE_S).topics[topic]
            except KafkaException as exception:
                logger.info("Owners of %s: topic %s: %s", self.settings.group, topic, kafka_error(exception).name())
                continue
            if found.error is None:
                self.problems.topic_is_well(topic)
            else:
                self.problems.note(found.error, topic)

    # --------------------------------------------------------------------- callbacks, on the polling thread

    def _on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        # An empty assignment has to be acknowledged too.
        consumer.incremental_assign(given)
        if given:
            consumer.pause(given)
        self.reporter.member_id = consumer.memberid() or ""
        partitions = _partitions(given)
        self.ledger.assigned(partitions)
        for topic, _ in partitions:
            self.problems.topic_is_well(topic)
        if partitions:
            self.reporter.tell("assigned", partitions, "given by the coordinator")

    def _on_revoke(self, consumer: Consumer, leaving: list[TopicPartition]) -> None:
        partitions = _partitions(leaving)
        left, reason = NONE, "given to another deployment"
        if self._parting is not None:
            left, reason = self._parting
        elif partitions and self._drains:
            with vouched_for(self.settings, self.reporter.member_id, self._clock, self._hear):
                left, reason = self._drain(partitions, self._hurry.wait)
        consumer.incremental_unassign(leaving)
        self.ledger.yielded(partitions)
        if partitions:
            self.reporter.tell("revoked", partitions, reason, left & partitions)

    def _on_lost(self, consumer: Consumer, gone: list[TopicPartition]) -> None:
        consumer.incremental_unassign(gone)
        lost = self.ledger.lose(_partitions(gone))
        if lost:
            self.reporter.tell("lost", lost, "the coordinator struck this member off, or is silent")

    def _on_statistics(self, document: str) -> None:
        # First what the silence until now has cost: an answer after it must not hide it.
        self._expire()
        statistics = json.loads(document)
        at = self._contact.observe(statistics)
        outside = self.settings.protocol == "classic" and statistics.get("cgrp", {}).get("join_state") in _OUTSIDE
        if at is None or outside:
            return
        self._hear(at)

    def _on_error(self, error: KafkaError) -> None:
        # Beside refusals and the end of the client these are connections that come and go.
        if is_refusal(error):
            self._note(error)

    # ------------------------------------------------------------------------------------------- draining

    @property
    def _drains(self) -> bool:
        return self.settings.rebalance_mode == "drain_and_yield"

    def _part(self, consumer: Consumer) -> None:
        """Drain before the close: a client that closes sends no heartbeats, whatever its callback waits for."""
        held = self.ledger.owned()
        parting = NONE, "this deployment leaves"
        if held and self._drains and not self._hurry.is_set():
            parting = self._drain(held, lambda seconds: self._take(consumer.poll(min(seconds, _POLL_S))))
        self._parting = parting

    def _drain(
        self, partitions: frozenset[Partition], wait: Callable[[float], object]
    ) -> tuple[frozenset[Partition], str]:
        self.ledger.drain(partitions)
        self.reporter.tell("draining", partitions, "to be given away once no work is in flight")
        left, why = drain(
            partitions,
            self.in_flight,
            deadline_s=self.settings.drain_deadline_s,
            clock=self._clock,
            wait=wait,
            why_stop=self._why_yield_now,
        )
        if left:
            logger.warning("Owners of %s: %s: yields %s", self.settings.group, why, sorted(left))
        else:
            self.reporter.tell("drained", partitions, why)
        return left, why

    def _why_yield_now(self) -> str | None:
        if self._hurry.is_set():
            return "this deployment leaves at once"
        self._expire()
        if not self.ledger.is_trusted():
            return "the coordinator is silent"
        return None

    # ------------------------------------------------------------------------------------------ reporting

    def _hear(self, at: float) -> None:
        back = self.ledger.contact(at)
        if self.ledger.is_trusted():
            self.problems.member_is_well()
        if back:
            self.reporter.tell("assigned", back, "the coordinator answers again")

    def _expire(self) -> None:
        lost = self.ledger.expire()
        if lost:
            self.reporter.tell(
                "lost", lost, f"no answer of the coordinator within {self.settings.session_timeout_s:g} s"
            )

    def _note(self, error: KafkaError, topic: str | None = None) -> None:
        self.problems.note(error, topic)
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._is_fatal = True


def _partitions(given: list[TopicPartition]) -> frozenset[Partition]:
    return frozenset((each.topic, each.partition) for each in given)
