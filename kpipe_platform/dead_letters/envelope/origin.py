"""kpipe's own headers in dead letters and in redriven records."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kpipe_platform.kafka.model.records import Headers

CORRELATION_HEADER = "correlation-id"
"""Header that carries the correlation id through a chain of topics."""

ATTEMPTS_HEADER = "kpipe.redrive.attempts"
"""Header with the number of redrives of a record, as text. It stays on the record, so its next dead letter has it."""

REDACTED_HEADER = "kpipe.redacted"
"""Header of a dead letter in raw form that a redaction hook processed. Its value is ``true``."""

REDACTED_MARK: tuple[str, bytes] = (REDACTED_HEADER, b"true")

ORIGIN_HEADER = "kpipe.origin"
"""Last header of a dead letter in raw form whose other headers may come from another tool; see `Origin`."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Original coordinates of a record in raw form, and the number of its own headers.

    kpipe writes this header if a reader could mistake the record for another dead letter: if the record has headers,
    which may be the error headers of any tool, or if it is an envelope itself. kpipe also writes it for a rejected
    output, whose error headers name its source.

    Args:
        topic: The record's topic.
        partition: Its partition. None for a rejected output.
        offset: Its offset. None for a rejected output.
        header_count: Number of the record's own headers. They come first.
        timestamp_ms: The record's timestamp, milliseconds since the epoch, if the dead-letter topic does not accept it
            and the dead letter has another one. None otherwise.
    """

    topic: str | None
    partition: int | None
    offset: int | None
    header_count: int
    timestamp_ms: int | None = None

    def to_header(self) -> tuple[str, bytes]:
        """Return the header's name, and its value as JSON."""
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
        """Parse the last header. Return None if it is not a valid origin header.

        An origin header in another position was left by an earlier hop, or came with the record.
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
