"""Read a topic from its log start to its current end with plain Kafka clients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from kpipe_platform.errors import BrokerUnavailableError
from kpipe_platform.kafka.client.calls import NO_LEADER, kafka_error, translate
from kpipe_platform.kafka.client.settings import ConnectionSettings

_BATCH = 5_000
# A local broker responds within milliseconds. After this time without a record or an end of a partition, give up.
_SILENCE_S = 30.0
_POLL_S = 0.2
# Transaction markers are written within milliseconds of a commit, or within seconds on a busy machine.
_SETTLE_DEADLINE_S = 60.0
_SETTLE_POLL_S = 0.05


def await_settled(settings: ConnectionSettings, topics: Iterable[str]) -> None:
    """Wait until read_committed consumers can read these topics to their ends.

    A commit is acknowledged before its markers are in every partition. Until then, such consumers stop before them.

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
                msg = f"topic {topic!r} still has an open transaction after {_SETTLE_DEADLINE_S:.0f} s"
                raise BrokerUnavailableError(msg, fix="stop its producer, or wait for its timeout", topic=topic)
            time.sleep(_SETTLE_POLL_S)


def committed_records(settings: ConnectionSettings, topic: str) -> Iterator[Message]:
    """Yield the committed records of a topic, up to the last stable offsets at the time of the call.

    Joins no group and commits no offset.

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
            # Transaction markers have offsets too. Only this event shows that nothing else is left.
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
    """Return the lag of a consumer group by partition.

    Raises:
        KpipeError: The topic does not exist, or the brokers do not answer.
    """
    consumer = Consumer({**settings.for_librdkafka(), "group.id": group, "isolation.level": "read_committed"})
    try:
        ends = _ends(consumer, topic, settings.request_timeout_s)
        stored = consumer.committed([TopicPartition(topic, number) for number in ends], settings.request_timeout_s)
        # In the protocol, a negative offset means that there is none.
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
        raise translate(error, settings, f"read the log end of topic {topic}", topic=topic) from error
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str, timeout_s: float) -> dict[int, tuple[int, int]]:
    """Return the log start and the last stable offset of each partition, once every partition has a leader."""
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
    metadata = consumer.list_topics(topic, timeout_s).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    return {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout_s)
        for number in sorted(metadata.partitions)
    }


def _until(consumer: Consumer, topic: str, ends: dict[int, int]) -> Iterator[Message]:
    open_ends = dict(ends)
    silent_s = 0.0
    while open_ends:
        messages = consumer.consume(_BATCH, _POLL_S)
        silent_s = 0.0 if messages else silent_s + _POLL_S
        if silent_s >= _SILENCE_S:
            waiting = sorted(open_ends)
            msg = f"topic {topic!r}: no record for {_SILENCE_S:.0f} s, but partitions {waiting} are not at their end"
            raise BrokerUnavailableError(msg, fix="check the broker's log, then run the command again", topic=topic)
        for message in messages:
            number, offset, error = message.partition(), message.offset(), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if number is None or offset is None:
                continue
            if error is None and offset < ends[number]:
                yield message
            else:
                # Ignore records that were written after the call.
                open_ends.pop(number, None)
