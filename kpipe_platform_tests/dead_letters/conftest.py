"""A source topic, its dead-letter topic, and ways to fill and redrive them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kpipe_platform.dead_letters import DeadLetterContext, build_dead_letter
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.dead_letters.redrive.redrive import redrive
from kpipe_platform.dead_letters.redrive.results import RedriveResult
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.messages import ConsumedRecord
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory

DEAD_LETTERED_MS = 1_700_000_100_000
FAULT = Fault(Component.DECODE_VALUE, "wrong_type", "shop.DecodeFault", "expected int", DEAD_LETTERED_MS)

KEEP = {"retention.ms": "-1"}


@dataclass
class DeadLetters:
    """A source topic and its dead-letter topic."""

    settings: ConnectionSettings
    source: str
    topic: str
    parking: str
    _produce: Produce
    _consume: Consume

    def add(self, records: Iterable[KafkaRecord], *, fault: Fault = FAULT, partition: int = 0, **context: Any) -> None:
        """Dead-letter records, as kpipe does it."""
        about = DeadLetterContext(self.topic, "priced", "run-1", "shop.priced")
        built = [
            build_dead_letter(each, fault, replace(about, **context), DEAD_LETTERED_MS, origin_range=None)
            for each in records
        ]
        self.put(
            *({"key": b.key, "value": b.value, "headers": b.headers, "timestamp": b.timestamp_ms} for b in built),
            partition=partition,
        )

    def put(self, *messages: Any, partition: int = 0, topic: str | None = None) -> None:
        """Write messages to the dead-letter topic as they are."""
        self._produce(topic or self.topic, [{"partition": partition, **message} for message in messages])

    def failed(self, number: int, **changes: Any) -> KafkaRecord:
        """A record of the source topic that failed."""
        about = {"key": b"k%d" % number, "value": b"v%d" % number, **changes}
        about.setdefault("partition", 0)
        return KafkaRecord(self.source, offset=number, timestamp_ms=1_700_000_000_000 + number, **about)

    def redrive(self, *, hooks: dict[str, Any] | None = None, **options: Any) -> RedriveResult:
        return redrive(self.settings, RedriveOptions(self.topic, **options), **(hooks or {}))

    def sent(self, topic: str | None = None, *, settle_s: float = 30.0) -> list[ConsumedRecord]:
        """What is in the source topic, read committed, once the transactions that are in it have ended.

        A commit is answered before its markers are in every partition.
        """
        return self._consume(topic or self.source, settle_s=settle_s)

    def values(self, topic: str | None = None, **how: Any) -> list[bytes | None]:
        return [each.value for each in self.sent(topic, **how)]


@pytest.fixture
def settings(kafka_broker: EmbeddedBroker) -> ConnectionSettings:
    return ConnectionSettings(kafka_broker.bootstrap_servers)


@pytest.fixture
def make_letters(
    settings: ConnectionSettings, kafka_topic: TopicFactory, produce: Produce, consume: Consume
) -> Callable[..., DeadLetters]:
    def make(partitions: int = 1, dead_letter_partitions: int = 1, config: dict[str, str] | None = None) -> DeadLetters:
        # The records are of 2023, and would not outlive the first round of retention.
        source = kafka_topic("orders", partitions=partitions, config={**KEEP, **(config or {})})
        topic = kafka_topic("orders.dlq", partitions=dead_letter_partitions, config=KEEP)
        return DeadLetters(settings, source, topic, f"{topic}.parking", produce, consume)

    return make


@pytest.fixture
def letters(make_letters: Callable[..., DeadLetters]) -> DeadLetters:
    return make_letters()
