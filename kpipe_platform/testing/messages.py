"""Input and output records of the test helpers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ConsumedRecord", "outgoing"]

_FIELDS = frozenset({"key", "value", "headers", "timestamp", "timestamp_ms", "partition"})


@dataclass(frozen=True)
class ConsumedRecord:
    """One record as it was read.

    Attributes:
        topic: Topic.
        partition: Partition.
        offset: Offset in the partition.
        timestamp_ms: Create or append time, milliseconds since 1970 in UTC.
        key: Key; None for a null key.
        value: Value; None for a tombstone.
        headers: Header names and values in their order. A name may occur more than once.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header of this name. None if there is none."""
        return next((value for each, value in reversed(self.headers) if each == name), None)

    def json(self) -> Any:
        """Return the value parsed as JSON. None for a tombstone."""
        return None if self.value is None else json.loads(self.value)


def outgoing(record: Any) -> dict[str, Any]:
    """Convert a record to the arguments of ``Producer.produce``.

    Args:
        record: A value, a ``(key, value)`` pair or a mapping; see `kpipe_platform.testing.records.produce`.

    Raises:
        TypeError: The record has none of these forms.
    """
    if isinstance(record, Mapping):
        unknown = record.keys() - _FIELDS
        if unknown:
            msg = (
                f"a record has no field {', '.join(sorted(map(str, unknown)))}; its fields are "
                f"{', '.join(sorted(_FIELDS))}. To write a mapping as JSON, use {{'value': mapping}}"
            )
            raise TypeError(msg)
        message = {
            "key": _bytes(record.get("key")),
            "value": _bytes(record.get("value")),
            "partition": record.get("partition", -1),
            "timestamp": record.get("timestamp_ms", record.get("timestamp", 0)),
        }
        headers = record.get("headers")
        if headers:
            message["headers"] = list(headers.items() if isinstance(headers, Mapping) else headers)
        return message
    if isinstance(record, tuple):
        key, value = record
        return {"key": _bytes(key), "value": _bytes(value)}
    if record is None or isinstance(record, (bytes, str)):
        return {"value": record}
    msg = f"a record is bytes, text, None, a (key, value) pair or a mapping, not {type(record).__name__}"
    raise TypeError(msg)


def _bytes(part: Any) -> bytes | str | None:
    if part is None or isinstance(part, (bytes, str)):
        return part
    return json.dumps(part, separators=(",", ":"), ensure_ascii=False)
