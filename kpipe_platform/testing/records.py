"""Fill and read topics in tests: acknowledged writes, and reads that stop at the log end."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from kpipe_platform.errors import BrokerUnavailableError, ConfigError, DeliveryError, TopicNotFoundError
from kpipe_platform.testing.clients import Client, client_config
from kpipe_platform.testing.messages import ConsumedRecord, outgoing
from kpipe_platform.testing.topics import Isolation, log_ranges

__all__ = ["ConsumedRecord", "Isolation", "consume", "log_ranges", "produce"]

logger = logging.getLogger(__name__)

_BATCH = 1000
_POLL_S = 0.02
# Transaction markers are written within milliseconds, or after the session of a lost broker expires.
_STABLE_S = 10.0
# A topic that was just created may be unknown for a moment.
_UNKNOWN_TOPIC_S = 2.0


def produce(
    client: Client,
    topic: str,
    records: Iterable[Any],
    *,
    transaction: Literal["commit", "abort"] | None = None,
    deadline_s: float = 60.0,
) -> int:
    """Write records and return after the brokers have acknowledged all of them.

    Partitions keep the order of ``records``. If a broker stops meanwhile, a record may be written twice, unless
    a transaction is used, or ``client`` has ``enable.idempotence``.

    Args:
        client: Bootstrap servers or a librdkafka configuration.
        topic: Topic.
        records: Each a value, a ``(key, value)`` pair, or a mapping with some of ``key``, ``value``,
            ``headers``, ``timestamp`` (milliseconds; ``timestamp_ms`` is the same) and ``partition``. Keys
            and values are bytes, text, None, or, in pairs and mappings, any JSON-serializable value.
        transaction: Write all records in one transaction, and ``commit`` or ``abort`` it.
        deadline_s: Maximum seconds to wait for the acknowledgements after the last record.

    Returns:
        Number of acknowledged records.

    Raises:
        ConfigError: ``transaction`` has another value.
        TopicNotFoundError: The topic does not exist.
        DeliveryError: The brokers refused records, or did not acknowledge all within the deadline.
        TypeError: A record has none of these forms, or ``records`` is a single record.
    """
    if transaction not in (None, "commit", "abort"):
        msg = f"produce(transaction={transaction!r})"
        raise ConfigError(msg, fix='use "commit" or "abort", or leave it out')
    if isinstance(records, str | bytes | bytearray | Mapping):
        msg = f"produce() takes several records, not a single {type(records).__name__}: write [record]"
        raise TypeError(msg)
    # Idempotence would delay the first record of each call by half a second, so order is kept by sending one request
    # at a time. Acknowledged records need no callback: they are implied by an empty queue without errors.
    defaults = {
        "acks": "all",
        "linger.ms": 5,
        # The topic's own limit decides, not the client's default of 1 MB.
        "message.max.bytes": 100_000_000,
        "max.in.flight": 1,
        "enable.idempotence": transaction is not None,
    }
    config = {**defaults, **client_config(client), "delivery.report.only.error": True}
    failures: list[tuple[KafkaError, Message]] = []
    if transaction is not None:
        config["transactional.id"] = f"kpipe-testing-{uuid.uuid4()}"
    producer = Producer(config)
    if transaction is not None:
        producer.init_transactions(deadline_s)
        producer.begin_transaction()

    def failed(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append((error, message))

    count = 0
    for count, record in enumerate(records, start=1):
        message = outgoing(record)
        while True:
            try:
                producer.produce(topic, on_delivery=failed, **message)
                break
            except BufferError:
                producer.poll(0.1)
        if count % _BATCH == 0:
            producer.poll(0)
    # The client keeps retrying if a topic does not exist.
    unacknowledged = producer.flush(min(_UNKNOWN_TOPIC_S, deadline_s))
    is_missing = unacknowledged > 0 and _is_missing(producer, topic)
    if unacknowledged and not is_missing:
        unacknowledged = producer.flush(max(deadline_s - _UNKNOWN_TOPIC_S, 0))
    if failures or unacknowledged:
        if transaction is not None:
            # An open transaction would block readers of committed records before the log end.
            producer.purge()
            producer.abort_transaction(deadline_s)
        if is_missing:
            msg = f"Topic {topic!r} does not exist."
            raise TopicNotFoundError(msg, fix="create it, for example with the kafka_topic fixture", topic=topic)
        reason = failures[0][0].str() if failures else f"no answer within {deadline_s:.0f} s"
        msg = f"{len(failures) + unacknowledged} of {count} records for topic {topic!r} were not acknowledged: {reason}"
        raise DeliveryError(msg, topic=topic)
    if transaction is not None:
        written = log_ranges(client, topic, isolation="read_uncommitted", deadline_s=deadline_s)
        if transaction == "commit":
            producer.commit_transaction(deadline_s)
        else:
            producer.abort_transaction(deadline_s)
        # The call returns shortly before the transaction's markers are in the log.
        _await_stable(client, topic, {each: end for each, (_, end) in written.items()}, _STABLE_S)
    return count


def _is_missing(producer: Producer, topic: str) -> bool:
    try:
        metadata = producer.list_topics(topic, timeout=_UNKNOWN_TOPIC_S).topics[topic]
    except KafkaException:
        return False  # the brokers are unavailable
    return metadata.error is not None and metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def consume(
    client: Client,
    topic: str,
    *,
    isolation: Isolation = "read_committed",
    deadline_s: float = 60.0,
    settle_s: float = 2.0,
) -> list[ConsumedRecord]:
    """Read a topic from its log start to its log end at the time of the call.

    Args:
        client: Bootstrap servers or a librdkafka configuration.
        topic: Topic.
        isolation: ``read_committed`` stops at the last stable offset and skips aborted records.
            ``read_uncommitted`` stops at the high watermark.
        deadline_s: Maximum seconds to read.
        settle_s: Maximum seconds that ``read_committed`` first waits for transactions to end. A commit returns
            shortly before its markers are in the log, and until then its records are not readable.

    Returns:
        The records, by partition and then offset. The call joins no group and commits no offset.

    Raises:
        TopicNotFoundError: The topic does not exist.
        BrokerUnavailableError: The log end was not reached within the deadline.
    """
    end_time = time.monotonic() + deadline_s
    if isolation == "read_committed":
        written = log_ranges(client, topic, isolation="read_uncommitted", deadline_s=deadline_s)
        ends = {partition: end for partition, (_, end) in written.items()}
        _await_stable(client, topic, ends, min(settle_s, deadline_s))
    ranges = log_ranges(client, topic, isolation=isolation, deadline_s=deadline_s)
    ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
    records: list[ConsumedRecord] = []
    if not ends:
        return records
    config = client_config(client, enable_auto_commit=False, auto_offset_reset="error")
    # The end-of-partition event shows that only transaction markers or gaps remain.
    config |= {
        "group.id": "kpipe-testing",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        # How long a broker delays an empty response.
        "fetch.wait.max.ms": 20,
    }
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition(topic, each, ranges[each][0]) for each in ends])
        while ends:
            left_s = end_time - time.monotonic()
            if left_s <= 0:
                msg = (
                    f"Topic {topic!r} was not read to its end within {deadline_s:.0f} s. End offsets that were not "
                    f"reached, by partition: {ends}"
                )
                raise BrokerUnavailableError(msg, topic=topic)
            for message in consumer.consume(_BATCH, timeout=min(left_s, 0.1)):
                _take(message, ends, records)
    finally:
        consumer.close()
    return sorted(records, key=lambda each: (each.partition, each.offset))


def _await_stable(client: Client, topic: str, ends: dict[int, int], deadline_s: float) -> None:
    # If another transaction stays open, the topic does not become stable. Then this only waits for the deadline.
    end_time = time.monotonic() + deadline_s
    while True:
        stable = log_ranges(client, topic)
        if all(stable[partition][1] >= end for partition, end in ends.items()):
            return
        if time.monotonic() >= end_time:
            logger.debug("topic %s has open transactions after %.0f s", topic, deadline_s)
            return
        time.sleep(_POLL_S)


def _take(message: Message, ends: dict[int, int], records: list[ConsumedRecord]) -> None:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    end = None if partition is None else ends.get(partition)
    if end is None or topic is None or partition is None or offset is None:
        return
    if error is None and offset < end:
        records.append(
            ConsumedRecord(
                topic,
                partition,
                offset,
                message.timestamp()[1],
                message.key(),
                message.value(),
                tuple(_header(each) for each in message.headers() or ()),
            )
        )
    # The end of the partition, or past its end at the time of the call: later records are not read.
    if offset + (error is None) >= end:
        del ends[partition]


def _header(header: Any) -> tuple[str, bytes | None]:
    name, value = header
    return name, value.encode() if isinstance(value, str) else value
