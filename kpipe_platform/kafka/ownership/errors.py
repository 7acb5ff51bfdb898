"""Convert Kafka errors that keep a member out of its group to kpipe errors."""

from __future__ import annotations

from confluent_kafka import KafkaError

from kpipe_platform.errors import FencedError, ForeignMemberError, KpipeError, TerminalError
from kpipe_platform.kafka.client.calls import translate
from kpipe_platform.kafka.ownership.settings import OwnershipSettings


def member_error(error: KafkaError, settings: OwnershipSettings) -> KpipeError:
    """Convert a client's membership error to a kpipe error.

    Args:
        error: The error, or the cause of a fatal error.
        settings: Settings of the member.
    """
    what = f"join group {settings.owners_group}"
    where = f"cannot {what} at {settings.connection.bootstrap_servers}"
    if error.code() == KafkaError.FENCED_INSTANCE_ID:
        message = f"{where}: another process joined with the same instance_id {settings.instance_id!r}"
        return FencedError(message, fix="give each deployment its own instance_id", group=settings.owners_group)
    if error.code() == KafkaError.UNRELEASED_INSTANCE_ID:
        message = f"{where}: another process is a member with the same instance_id {settings.instance_id!r}"
        return ForeignMemberError(
            message,
            fix="if that process was killed, wait until the brokers remove it after its session timeout; "
            "otherwise give each deployment its own instance_id",
            group=settings.owners_group,
        )
    if error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
        message = f"{where}: the brokers do not accept a session timeout of {settings.session_timeout_s:g} s"
        return TerminalError(
            message,
            fix="set session_timeout_s between the brokers' group.min.session.timeout.ms (6 s by default) and "
            "group.max.session.timeout.ms",
            group=settings.owners_group,
        )
    return translate(error, settings.connection, what, group=settings.owners_group)
