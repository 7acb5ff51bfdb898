"""Reading a dead-letter topic, one partition after another, up to an end that is fixed before."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, TopicPartition

from kpipe_platform.errors import TransientError
from kpipe_platform.kafka.calls import no_answer, translate
from kpipe_platform.kafka.clients import new_client, reader_config
from kpipe_platform.kafka.fetch import to_record
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.records import KafkaRecord
from kpipe_platform.kafka.settings import ConnectionSettings

_BATCH = 500


def read_range(
    settings: ConnectionSettings, group: str, wanted: OffsetRange, isolation: str = "read_committed"
) -> Iterator[KafkaRecord]:
    """The records of a range, in order.

    Args:
        settings: The connection.
        group: Group id for the client; nothing is joined and nothing is committed.
        wanted: The range. Its end must not lie behind the last stable offset.
        isolation: ``read_committed`` or ``read_uncommitted``.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
        TransientError: Retention overtook the reading.
        KpipeError: The partition cannot be read.
    """
    if wanted.is_empty:
        return
    topic, partition = wanted.topic, wanted.partition
    what = f"read {topic}/{partition}"
    config = {
        **reader_config(settings, group, isolation),
        # Only the event for a partition's end tells that nothing but transaction markers is left.
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        "queued.max.messages.kbytes": 16_384,
    }
    consumer = new_client(Consumer, config, settings)
    try:
        consumer.assign([TopicPartition(topic, partition, wanted.start)])
        heard_at = time.monotonic()
        while True:
            messages = consumer.consume(_BATCH, 0.2)
            if not messages and time.monotonic() - heard_at > settings.request_timeout_s:
                raise no_answer(settings, what, topic=topic, partition=partition)
            for message in messages:
                offset, error = message.offset(), message.error()
                if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    # The range was there when it was asked for.
                    msg = f"cannot {what}: retention deleted records of {wanted} meanwhile"
                    fix = "run again for what is left; to keep more, raise retention.ms of the topic"
                    raise TransientError(msg, fix=fix, topic=topic, partition=partition)
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise translate(error, settings, what, topic=topic, partition=partition)
                if offset is None or offset >= wanted.end:
                    return
                if error is not None:
                    # The end as the broker saw it before the last records; what is missing is still to come, and must
                    # not be taken for a gap.
                    continue
                yield to_record(message)
                # The caller may take its time with it, and that is not the brokers' delay.
                heard_at = time.monotonic()
    finally:
        consumer.close()
