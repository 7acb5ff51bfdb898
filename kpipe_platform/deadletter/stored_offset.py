"""The offset of the group that holds a redrive's progress, with the text beside it."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from kpipe_platform.kafka.calls import kafka_error, translate
from kpipe_platform.kafka.clients import Clients

# A coordinator that moves or has just started; the client asks it again only where it is a producer's.
_MOMENTARY = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The group's offset of a partition.

    Args:
        offset: Next offset to read.
        text: What stands beside it.
    """

    offset: int
    text: str | None


def read_stored_offset(clients: Clients, group: str, topic: str, partition: int) -> StoredOffset | None:
    """The group's offset of a partition with the text beside it; None where it has none.

    Raises:
        BrokerUnavailableError: No answer within the deadline, for example because a transaction that is neither
            committed nor aborted holds the offset.
        AuthorizationFailedError: The group may not be read.
    """
    settings, what = clients.settings, f"read the offset of group {group} for {topic}/{partition}"
    retrying = Retrying(
        retry=retry_if_exception(_is_momentary),
        wait=wait_exponential(multiplier=0.02, max=0.5),
        stop=stop_after_delay(settings.request_timeout_s),
        reraise=True,
    )
    try:
        return retrying(_read_once, clients, group, TopicPartition(topic, partition))
    except KafkaException as exception:
        raise translate(exception, settings, what, group=group) from exception


def _read_once(clients: Clients, group: str, place: TopicPartition) -> StoredOffset | None:
    # librdkafka asks for stable offsets under read_committed and retries while one is pending.
    (found,) = clients.consumer(group).committed([place], clients.settings.request_timeout_s)
    if found.error is not None:
        raise KafkaException(found.error)
    # A negative offset without an error is the protocol's way to say that there is none.
    return None if found.offset < 0 else StoredOffset(found.offset, found.metadata or None)


def _is_momentary(exception: BaseException) -> bool:
    return isinstance(exception, KafkaException) and kafka_error(exception).code() in _MOMENTARY
