"""Reading a topic from its start to its present end with plain clients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from kpipe_platform.errors import BrokerUnavailableError
from kpipe_platform.kafka.client.calls import NO_LEADER, kafka_error, translate
from kpipe_platform.kafka.client.settings import ConnectionSettings

_BATCH = 5_000
# A local broker answers in milliseconds; after this long without a record or an end something is wrong.
_SILENCE_S = 30.0
_POLL_S = 0.2
# Markers follow a commit within milliseconds; a busy machine may take seconds.
_SETTLE_DEADLINE_S = 60.0
_SETTLE_POLL_S = 0.05


def await_settled(settings: ConnectionSettings, topics: Iterable[str]) -> None:
    """Wait until readers of committed records see all of some topics.

    A commit is answered before its markers are in every partition, and until they are, such readers stop before them.

    Raises:
        BrokerUnavailableError: A transaction is still open at the deadline.
        KpipeError: A topic does not exist, or the brokers do not answer.
    """
    deadline = time.monotonic() + _SETTLE_DEADLINE_S
    for topic in topics:
        while True:
            committed, written = (_ends_at(settings, topic, level) for level in ("read_committed", "read_uncommitted"))
            if committed == written:
                break
            if time.monotonic() > deadline:
                msg = f"a transaction is open in topic {topic!r} after {_SETTLE_DEADLINE_S:.0f} s"
                raise BrokerUnavailableError(msg, fix="stop its writer, or wait for its timeout", topic=topic)
            time.sleep(_SETTLE_POLL_S)


def committed_records(settings: ConnectionSettings, topic: str) -> Iterator[Message]:
    """The committed records of a topic, up to where each partition's committed records end at the call.

    No group is joined and no offset is stored.

    Raises:
        KpipeError: The topic does not exist, or the brokers do not answer.
    """
    consumer = Consumer(
        {
            **settings.for_librdkafka(),
            "group.id": "kpipe-demo-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            # Transaction markers fill offsets too: only this event tells that nothing but them is left.
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    try:
        ends = _ends(consumer, topic, settings.request_timeout_s)
        consumer.assign([TopicPartition(topic, number, start) for number, (start, _) in ends.items()])
        yield from _until(consumer, topic, {number: end for number, (_, end) in ends.items()})
    except KafkaException as error:
        raise translate(error, settings, f"read topic {topic}", topic=topic) from error
    finally:
        consumer.close()


def group_lags(settings: ConnectionSettings, group: str, topic: str) -> dict[int, int]:
    """Committed offsets that wait for a group, by partition, as lag tools count them.

    Raises:
        KpipeError: The topic does not exist, or the brokers do not answer.
    """
    consumer = Consumer({**settings.for_librdkafka(), "group.id": group, "isolation.level": "read_committed"})
    try:
        ends = _ends(consumer, topic, settings.request_timeout_s)
        stored = consumer.committed([TopicPartition(topic, number) for number in ends], settings.request_timeout_s)
        # A negative offset is the protocol's way to say that there is none.
        return {tp.partition: ends[tp.partition][1] - max(tp.offset, ends[tp.partition][0]) for tp in stored}
    except KafkaException as error:
        raise translate(error, settings, f"read the offsets of group {group}", topic=topic) from error
    finally:
        consumer.close()


def _ends_at(settings: ConnectionSettings, topic: str, isolation: str) -> dict[int, tuple[int, int]]:
    consumer = Consumer({**settings.for_librdkafka(), "group.id": "kpipe-demo-reader", "isolation.level": isolation})
    try:
        return _ends(consumer, topic, settings.request_timeout_s)
    except KafkaException as error:
        raise translate(error, settings, f"look for the end of topic {topic}", topic=topic) from error
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str, timeout_s: float) -> dict[int, tuple[int, int]]:
    """First offset and last stable offset of each partition, once every partition has a leader."""
    retrying = Retrying(
        retry=retry_if_exception(_waits_for_a_leader),
        wait=wait_fixed(_SETTLE_POLL_S),
        stop=stop_after_delay(_SETTLE_DEADLINE_S),
        reraise=True,
    )
    return retrying(_ends_now, consumer, topic, timeout_s)


def _waits_for_a_leader(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and kafka_error(error).code() in NO_LEADER


def _ends_now(consumer: Consumer, topic: str, timeout_s: float) -> dict[int, tuple[int, int]]:
    found = consumer.list_topics(topic, timeout_s).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout_s)
        for number in sorted(found.partitions)
    }


def _until(consumer: Consumer, topic: str, ends: dict[int, int]) -> Iterator[Message]:
    open_ends = dict(ends)
    silent_s = 0.0
    while open_ends:
        messages = consumer.consume(_BATCH, _POLL_S)
        silent_s = 0.0 if messages else silent_s + _POLL_S
        if silent_s >= _SILENCE_S:
            waiting = sorted(open_ends)
            msg = f"topic {topic!r}: no record for {_SILENCE_S:.0f} s, and partitions {waiting} not at their end"
            raise BrokerUnavailableError(msg, fix="see the broker's log, then run again", topic=topic)
        for message in messages:
            number, offset, error = message.partition(), message.offset(), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if number is None or offset is None:
                continue
            if error is None and offset < ends[number]:
                yield message
            else:
                # What was written after the call does not count.
                open_ends.pop(number, None)
