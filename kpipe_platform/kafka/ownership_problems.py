"""Why a member cannot own anything: Kafka's errors that somebody has to know of, until they are over."""

from __future__ import annotations

import logging
import threading

from confluent_kafka import KafkaError

from kpipe_platform.errors import FencedError, ForeignMemberError, KpipeError, TerminalError
from kpipe_platform.kafka.calls import translate
from kpipe_platform.kafka.clients import REFUSALS
from kpipe_platform.kafka.ownership_settings import OwnershipSettings

logger = logging.getLogger(__name__)

_TOPIC_CODES = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
)

_STAYS = (KafkaError.FENCED_INSTANCE_ID,)
"""Errors after which the member must not come back by itself: it would throw out the one that took its place."""

_FATAL_CAUSES = (
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.UNRELEASED_INSTANCE_ID,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
)


class Problems:
    """The problems of one member; safe to use from several threads.

    Only what does not pass by itself is kept. A broker that is away is no problem in this sense: its silence ends
    the ownership, and its return renews it.
    """

    def __init__(self, settings: OwnershipSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._member: KpipeError | None = None
        self._topics: dict[str, KpipeError] = {}

    @property
    def current(self) -> KpipeError | None:
        """The most important problem; None where there is none."""
        with self._lock:
            return self._member or next(iter(self._topics.values()), None)

    @property
    def topics(self) -> list[str]:
        """Topics that have a problem of their own."""
        with self._lock:
            return list(self._topics)

    def note(self, error: KafkaError, topic: str | None = None) -> None:
        """Take in what a client reported.

        Args:
            error: The error.
            topic: The topic it is about, where it is about one.
        """
        settings = self._settings
        if error.code() in _TOPIC_CODES:
            concerned = [topic] if topic in settings.topics else list(settings.topics)
            for name in concerned:
                found = translate(error, settings.connection, f"share topic {name}", topic=name)
                with self._lock:
                    self._topics[name] = found
            return
        error = _cause(error)
        found = self._of_member(error)
        if isinstance(found, TerminalError) or error.fatal():
            with self._lock:
                self._member = found
        else:
            logger.info("Owners of %s: %s", settings.group, found.message)

    def keep(self, problem: KpipeError) -> None:
        """Keep a problem of the member that was found otherwise."""
        with self._lock:
            self._member = problem

    def member_is_well(self) -> None:
        """The coordinator counts the member in: what kept it out is over."""
        with self._lock:
            self._member = None

    def topic_is_well(self, topic: str) -> None:
        """The topic can be shared: what kept it out is over."""
        with self._lock:
            self._topics.pop(topic, None)

    def _of_member(self, error: KafkaError) -> KpipeError:
        settings = self._settings
        what = f"be an owner in group {settings.owners_group}"
        where = f"cannot {what} at {settings.connection.bootstrap_servers}"
        if error.code() in _STAYS:
            message = f"{where}: another process joined under the instance_id {settings.instance_id!r}"
            return FencedError(
                message, fix="give each deployment an instance_id of its own", group=settings.owners_group
            )
        if error.code() == KafkaError.UNRELEASED_INSTANCE_ID:
            message = f"{where}: another process is a member under the instance_id {settings.instance_id!r}"
            return ForeignMemberError(
                message,
                fix="nothing if that process was killed: the brokers strike it off after their session timeout; "
                "else give each deployment an instance_id of its own",
                group=settings.owners_group,
            )
        if error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
            message = f"{where}: the brokers do not take a session timeout of {settings.session_timeout_s:g} s"
            return TerminalError(
                message,
                fix="set session_timeout_s between the brokers' group.min.session.timeout.ms (6 s by default) and "
                "group.max.session.timeout.ms",
                group=settings.owners_group,
            )
        return translate(error, settings.connection, what, group=settings.owners_group)


def _cause(error: KafkaError) -> KafkaError:
    """The error behind one that only says "fatal": the client keeps its code to itself, and tells its text."""
    if error.code() == KafkaError._FATAL:
        for code in _FATAL_CAUSES:
            if KafkaError(code).str() in error.str():
                return KafkaError(code, fatal=True)
    return error


def is_refusal(error: KafkaError) -> bool:
    """Whether an error of a connection, which librdkafka hides behind retries, is one that waiting does not mend."""
    return error.code() in REFUSALS or error.fatal()


def stays_out(problem: KpipeError | None) -> bool:
    """Whether the member must not come back by itself after this."""
    return isinstance(problem, FencedError)
