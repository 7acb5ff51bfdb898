"""Dead letters of dagster-kafka: one JSON document, with the original value in hexadecimal.

Source: dagster-kafka ``DLQMessage.to_dict``. It keeps the value's bytes; key and headers as text, so that a key that is
no UTF-8 never gets there, and an empty key or value is told from a null one no longer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kpipe_platform.deadletter.times import from_iso
from kpipe_platform.kafka.records import KafkaRecord


@dataclass(frozen=True, slots=True)
class JsonBody:
    """What the document says.

    Args:
        original: The record that failed.
        kind: Class of the error, such as ``schema_error``.
        message: What the exception said.
        asset: The asset's key, else the consumer group.
        failed_ms: When it failed, milliseconds since the epoch.
        attempts: How often it was tried.
    """

    original: KafkaRecord
    kind: str | None
    message: str | None
    asset: str | None
    failed_ms: int | None
    attempts: int


def read_json_body(value: bytes | None) -> JsonBody | None:
    """Read the value of a dead letter; None where it is no such document."""
    # Most values are something else; looking for the name is cheaper than parsing them.
    if value is None or b'"original_message"' not in value or b'"dlq_metadata"' not in value:
        return None
    try:
        return _read(json.loads(value))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _read(document: dict[str, Any]) -> JsonBody:
    message, error = document["original_message"], document["error_info"]
    about = document["processing_metadata"]
    key, value, timestamp = message["key"], message["value_hex"], message["timestamp"]
    return JsonBody(
        original=KafkaRecord(
            topic=str(message["topic"]),
            partition=int(message["partition"]),
            offset=int(message["offset"]),
            timestamp_ms=None if timestamp is None else int(timestamp),
            key=None if key is None else key.encode(),
            value=None if value is None else bytes.fromhex(value),
            headers=tuple((name, text.encode()) for name, text in (message["headers"] or {}).items()),
        ),
        kind=error.get("type"),
        message=error.get("message"),
        asset=about.get("dagster_asset_key") or about.get("consumer_group_id"),
        failed_ms=from_iso(error.get("failure_timestamp")),
        attempts=int(error.get("retry_count") or 0),
    )
