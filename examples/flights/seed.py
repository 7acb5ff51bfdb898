"""Filling the topic of flights: all of them in one transaction, so that a year is there whole or not at all."""

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
# The year takes about ten seconds; a machine that is ten times slower still commits in time.
_TRANSACTION_TIMEOUT_MS = 300_000
_DEADLINE_S = 120.0
_ABORT_DEADLINE_S = 10.0
_QUEUE_WAIT_S = 0.02
_TELL_EVERY = 2_000


@dataclass(frozen=True)
class Seeded:
    """What seeding did.

    Args:
        written: Records written now; 0 where they were there already.
        found: Committed records that the topic held before, counted by reading.
        seconds: How long it took.
    """

    written: int
    found: int
    seconds: float


def seed(settings: ConnectionSettings, flights: pd.DataFrame, progress: Progress = lambda _: None) -> Seeded:
    """Create the platform's topics and write the flights, unless they are there.

    An interrupted call leaves nothing behind that a reader of committed records could see, and the next one aborts
    what it left open.

    Args:
        settings: The connection.
        flights: A frame of ``demo.data.flights``.
        progress: Told how far the writing is.

    Raises:
        ConfigError: The topic has other partitions, or holds only some of the flights.
        DeliveryError: Records were not acknowledged; none is visible.
        KpipeError: The brokers do not answer or refuse.
    """
    began = time.monotonic()
    new = _create_topics(settings)
    found = 0 if FLIGHTS in new else sum(1 for _ in committed_records(settings, FLIGHTS))
    if found >= len(flights):
        return Seeded(0, found, time.monotonic() - began)
    if found:
        msg = f"topic {FLIGHTS!r} holds {found:,} records, but not the {len(flights):,} flights"
        raise ConfigError(
            msg, fix=f"delete the topics {', '.join(TOPICS)}, or the broker's data, and start again", topic=FLIGHTS
        )
    written = _write(settings, flights, progress)
    await_settled(settings, [FLIGHTS])
    return Seeded(written, 0, time.monotonic() - began)


def _create_topics(settings: ConnectionSettings) -> set[str]:
    """Create the topics that are missing, and wait until all are there; returns the names of the new ones."""
    with Clients(settings) as clients:
        new = {name for name, spec in TOPICS.items() if create_topic(clients, name, spec)}
        for name in TOPICS:
            count, wanted = _partitions(clients, name), TOPICS[name].partitions
            if count != wanted:
                msg = f"topic {name!r} has {count} partitions, and the flights platform works with {wanted}"
                raise ConfigError(msg, fix="delete the topic, or seed another cluster", topic=name)
    return new


def _partitions(clients: Clients, name: str) -> int:
    """Partitions of a topic that exists, be it since a moment ago: brokers learn of a new topic one after the other."""
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
            # The same id each time: the next seeding takes over from one that was killed and aborts its rest.
            "transactional.id": _TRANSACTIONAL_ID,
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            # Java's default partitioner: a key lands where every other Kafka client puts it.
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 50,
            # Acknowledged records need no call back: an empty queue and no failure say as much.
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
                if count % _TELL_EVERY == 0:
                    producer.poll(0)
                    progress(count - len(producer))
            left = producer.flush(_DEADLINE_S)
            if left or failures:
                reason = failures[0].str() if failures else f"no answer within {_DEADLINE_S:.0f} s"
                msg = f"{left or len(failures):,} of {count:,} flights were not acknowledged: {reason}"
                raise DeliveryError(msg, fix="see the broker's log, then seed again", topic=FLIGHTS)
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
