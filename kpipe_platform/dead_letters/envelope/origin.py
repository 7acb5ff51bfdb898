"""The headers that kpipe itself writes to dead letters and to redriven records."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kpipe_platform.kafka.model.records import Headers

CORRELATION_HEADER = "correlation-id"
"""Header that carries the correlation id through a chain of topics."""

ATTEMPTS_HEADER = "kpipe.redrive.attempts"
"""How often a record was redriven, as text. It travels with the record, so that its next dead letter has it too."""

REDACTED_HEADER = "kpipe.redacted"
"""Header of a dead letter in raw form whose bytes went through a redaction hook; its value is ``true``."""

REDACTED_MARK: tuple[str, bytes] = (REDACTED_HEADER, b"true")

ORIGIN_HEADER = "kpipe.origin"
"""Last header of a dead letter in raw form whose other headers may not be kpipe's; see `Origin`."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record in raw form belongs, and which headers are its own.

    kpipe writes it where a reader could take the record for another dead letter: it has headers, which may be the error
    headers of any tool, or it is an envelope itself. Likewise for a rejected output, whose error headers name its
    source.

    Args:
        topic: The record's topic.
        partition: Its partition; None for a rejected output.
        offset: Its offset; likewise.
        header_count: Headers that the record has; they are the first ones.
        timestamp_ms: Its timestamp, where the dead-letter topic does not take it, and the dead letter has another.
    """

    topic: str | None
    partition: int | None
    offset: int | None
    header_count: int
    timestamp_ms: int | None = None

    def to_header(self) -> tuple[str, bytes]:
        """The header, as JSON."""
        document = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "header_count": self.header_count,
        }
        if self.timestamp_ms is not None:
            document["timestamp_ms"] = self.timestamp_ms
        return ORIGIN_HEADER, json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_headers(cls, headers: Headers) -> Origin | None:
        """What the last header says; None where it is another header.

        One that is not the last was left by an earlier hop, or came with the record.
        """
        if not headers or headers[-1][0] != ORIGIN_HEADER:
            return None
        try:
            document = json.loads(headers[-1][1] or b"")
            topic, *numbers = (document[name] for name in ("topic", "partition", "offset", "header_count"))
            timestamp_ms = document.get("timestamp_ms")
        except (ValueError, KeyError, TypeError):
            return None
        are_numbers = all(isinstance(n, int) and n >= 0 for n in numbers if n is not None)
        if not (isinstance(topic, str) and are_numbers and numbers[-1] is not None):
            return None
        partition, offset, header_count = numbers
        timestamp_ms = timestamp_ms if isinstance(timestamp_ms, int) else None
        return cls(topic, partition, offset, header_count, timestamp_ms)
