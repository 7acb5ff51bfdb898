"""Fill the topic of flights in one transaction, so that it contains either the whole year or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from examples.flights.reading import await_settled, committed_records
from kpipe_platform.demo.data import FlightRecord, records
from kpipe_platform.demo.topics import FLIGHTS, TOPICS
from kpipe_platform.errors import ConfigError, DeliveryError, TopicNotFoundError
from kpipe_platform.kafka.admin.topics import create_topic, describe_topics
from kpipe_platform.kafka.client.calls import translate
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings

Progress = Callable[[int], None]
"""Called with the number of acknowledged records so far."""

_TRANSACTIONAL_ID = "kpipe.demo.seed"
# Writing the year takes about ten seconds. A machine that is ten times slower still commits in time.
_TRANSACTION_TIMEOUT_MS = 300_000
_DEADLINE_S = 120.0
_ABORT_DEADLINE_S = 10.0
_QUEUE_WAIT_S = 0.02
_REPORT_EVERY = 2_000


@dataclass(frozen=True)
class Seeded:
    """Result of seeding.

    Args:
        written: Number of written records; 0 if the topic was already filled.
        found: Number of committed records that the topic already contained.
        seconds: Duration.
    """

    written: int
    found: int
    seconds: float


def seed(settings: ConnectionSettings, flights: pd.DataFrame, progress: Progress = lambda _: None) -> Seeded:
    """Create the platform's topics and write the flights, unless the topic already contains them.

    If the call is interrupted, read_committed consumers see none of its records, and the next call aborts its open
    transaction.

    Args:
        settings: Connection settings.
        flights: The flights, as returned by ``demo.data.flights``.
        progress: Called with the number of acknowledged records so far.

    Raises:
        ConfigError: The topic has another number of partitions, or contains only some of the flights.
        DeliveryError: Records were not acknowledged; none is visible.
        KpipeError: The brokers do not respond, or refuse a request.
    """
    began = time.monotonic()
    new = _create_topics(settings)
    found = 0 if FLIGHTS in new else sum(1 for _ in committed_records(settings, FLIGHTS))
    if found >= len(flights):
        return Seeded(0, found, time.monotonic() - began)
    if found:
        msg = f"topic {FLIGHTS!r} contains {found:,} records instead of the {len(flights):,} flights"
        raise ConfigError(
            msg, fix=f"delete the topics {', '.join(TOPICS)}, or the broker's data, and start again", topic=FLIGHTS
        )
    written = _write(settings, flights, progress)
    await_settled(settings, [FLIGHTS])
    return Seeded(written, 0, time.monotonic() - began)


def _create_topics(settings: ConnectionSettings) -> set[str]:
    """Create missing topics, wait until all exist, and return the names of the new ones."""
    with Clients(settings) as clients:
        new = {name for name, spec in TOPICS.items() if create_topic(clients, name, spec)}
        for name in TOPICS:
            count, wanted = _partitions(clients, name), TOPICS[name].partitions
            if count != wanted:
                msg = f"topic {name!r} has {count} partitions, but the flights platform needs {wanted}"
                raise ConfigError(msg, fix="delete the topic, or seed another cluster", topic=name)
    return new


def _partitions(clients: Clients, name: str) -> int:
    """Return the number of partitions of a topic. A broker may learn of a new topic later than another one."""
    retrying = Retrying(
        retry=retry_if_exception_type(TopicNotFoundError),
        wait=wait_exponential(multiplier=0.02, max=0.5),
        stop=stop_after_delay(clients.settings.request_timeout_s),
        reraise=True,
    )
    return retrying(describe_topics, clients, [name])[name].partitions


def _write(settings: ConnectionSettings, flights: pd.DataFrame, progress: Progress) -> int:
    producer = Producer(
        {
            **settings.for_librdkafka(),
            # The same id each time, so that the next seeding fences a killed one and aborts its transaction.
            "transactional.id": _TRANSACTIONAL_ID,
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            # The default partitioner of Java clients, so that all clients send a key to the same partition.
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 50,
            # Acknowledged records need no callback: they are implied by an empty queue without failures.
            "delivery.report.only.error": True,
        }
    )
    failures: list[KafkaError] = []

    def failed(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    try:
        producer.init_transactions(_DEADLINE_S)
        producer.begin_transaction()
        try:
            count = 0
            for count, record in enumerate(records(flights), start=1):
                _send(producer, record, failed)
                if count % _REPORT_EVERY == 0:
                    producer.poll(0)
                    progress(count - len(producer))
            left = producer.flush(_DEADLINE_S)
            if left or failures:
                reason = failures[0].str() if failures else f"no answer within {_DEADLINE_S:.0f} s"
                msg = f"{left or len(failures):,} of {count:,} flights were not acknowledged: {reason}"
                raise DeliveryError(msg, fix="check the broker's log, then run the command again", topic=FLIGHTS)
            producer.commit_transaction(_DEADLINE_S)
        except BaseException:
            producer.purge()
            producer.abort_transaction(_ABORT_DEADLINE_S)
            raise
    except KafkaException as error:
        raise translate(error, settings, f"write topic {FLIGHTS}", topic=FLIGHTS) from error
    progress(count)
    return count


def _send(producer: Producer, record: FlightRecord, failed: Callable[[KafkaError | None, Message], None]) -> None:
    while True:
        try:
            producer.produce(
                FLIGHTS,
                record.value,
                record.key,
                headers=list(record.headers),
                timestamp=record.timestamp_ms,
                on_delivery=failed,
            )
        except BufferError:
            producer.poll(_QUEUE_WAIT_S)
        else:
            return
