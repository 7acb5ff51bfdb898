"""Complete dead letters with payloads and headers from their source topics."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from kpipe_platform.dead_letters.envelope.parts import PayloadReference
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.dead_letters.read.reader import with_source
from kpipe_platform.dead_letters.redrive.decide import Decision, kept
from kpipe_platform.dead_letters.redrive.options import Redacted
from kpipe_platform.errors import BrokerUnavailableError, TopicNotFoundError, TransientError
from kpipe_platform.kafka.admin.topics import describe_topics, is_topic_name
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import read_watermarks
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.read.fetch import RecordFetcher


class Payloads:
    """Reads source records at the coordinates that dead letters name.

    Args:
        clients: Clients to use.
        group: Group id for the client. It does not join the group and commits nothing.
        redacted: How to handle redacted payloads.
    """

    def __init__(self, clients: Clients, group: str, redacted: Redacted = "keep") -> None:
        self._clients = clients
        self._fetcher = RecordFetcher(clients.settings, group, "read_committed")
        self._redacted = redacted
        self._partitions: dict[str, int] = {}

    def complete(self, found: FoundDeadLetter) -> FoundDeadLetter | Decision:
        """Return the dead letter with its complete record, or the decision to keep it.

        Raises:
            BrokerUnavailableError: The brokers did not respond within the deadline.
        """
        by_choice = found.redacted and self._redacted == "from_source"
        if found.problem is not None or (found.from_source is None and not by_choice):
            return found
        if found.redacted and not by_choice and found.from_source == "payload":
            detail = "its payload was redacted and did not fit, so that neither form of it is here"
            return kept(found, "redacted", detail)
        if by_choice and found.topics:
            return kept(found, "redacted", f"its payload is in one of the topics {', '.join(found.topics)}")
        source = self._read(found.original)
        if found.from_source == "headers" and not by_choice:
            # Without the source record, the dead letter still has the bytes; the headers are lost.
            if source is None or not _is_same(found.original, source):
                return replace(found, from_source=None)
        elif source is None:
            detail = f"its payload is only at {found.original.coordinates}, and is not there any more"
            return kept(found, "payload_gone", detail)
        elif found.reference is not None and not by_choice and not _fits(source, found.reference):
            detail = f"the record at {found.original.coordinates} is another one: size or checksum differ"
            return kept(found, "payload_changed", detail)
        return with_source(found, source)

    def _read(self, place: KafkaRecord) -> KafkaRecord | None:
        """Return the record at these coordinates. None if it does not exist anymore."""
        topic, partition, offset = place.topic, place.partition, place.offset
        if topic is None or partition is None or offset is None or partition >= self._partitions_of(topic):
            return None
        try:
            # A consumer would wait forever for an offset after the log end.
            watermarks = read_watermarks(self._clients, [(topic, partition)], "read_committed")[(topic, partition)]
            if not watermarks.log_start <= offset < watermarks.end:
                return None
            return self._fetcher.get(topic, partition, offset)
        except BrokerUnavailableError:
            raise
        except (TransientError, TopicNotFoundError):
            return None

    def _partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic. 0 if it does not exist."""
        if topic not in self._partitions:
            self._partitions[topic] = 0
            if is_topic_name(topic):
                with suppress(TopicNotFoundError):
                    self._partitions[topic] = describe_topics(self._clients, [topic])[topic].partitions
        return self._partitions[topic]

    def close(self) -> None:
        """Close the clients."""
        self._fetcher.close()

    def __enter__(self) -> Payloads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_same(found: KafkaRecord, source: KafkaRecord) -> bool:
    return (found.key, found.value) == (source.key, source.value)


def _fits(source: KafkaRecord, reference: PayloadReference) -> bool:
    return all(
        (None if data is None else (len(data), hashlib.sha256(data).hexdigest()))
        == (None if size is None else (size, digest))
        for data, size, digest in (
            (source.key, reference.key_bytes, reference.key_sha256),
            (source.value, reference.value_bytes, reference.value_sha256),
        )
    )
