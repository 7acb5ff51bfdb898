"""Parts of the envelope other than the record and its fault, each with its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kpipe_platform.dead_letters.envelope.times import required_from_iso, to_iso
from kpipe_platform.kafka.model.instance_names import instance_name, worker_name
from kpipe_platform.policies.faults import truncate

SCHEMA = "kpipe.dead_letter/1"
"""Name and version of the envelope."""

MAX_RETRY_MESSAGE_CHARS = 500
"""Maximum length of a retry's message. A dead letter may hold many retries within the record's size limit."""


@dataclass(frozen=True, slots=True)
class OriginRange:
    """The offset range ``[start, end)`` of one partition that a rejected output record came from.

    If the stage dropped the ``_kafka`` column, an output record has no known source record, only its slice.
    """

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One step that the record went through before it failed.

    Args:
        name: Name of the step: ``plan``, ``stage`` (the call of the asset's function), ``run`` (the Spark job up to the
            writer), ``write``.
        started_ms: When it began, milliseconds since the epoch.
        duration_ms: How long it took, milliseconds; None if it did not end.
    """

    name: str
    started_ms: int
    duration_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the segment's JSON form in the envelope."""
        return {"name": self.name, "started_at": to_iso(self.started_ms), "duration_ms": self.duration_ms}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Segment:
        """Read a segment from its JSON form."""
        return cls(value["name"], required_from_iso(value["started_at"]), value["duration_ms"])


@dataclass(frozen=True, slots=True)
class Retry:
    """One failed attempt before kpipe gave up on the record.

    Args:
        attempt: Number of the attempt, from 1.
        at_ms: When it failed, milliseconds since the epoch.
        delay_ms: Delay before the next attempt, milliseconds; None for the last attempt.
        exception_type: Class of the exception.
        message: Message of the exception, truncated to `MAX_RETRY_MESSAGE_CHARS`.
    """

    attempt: int
    at_ms: int
    delay_ms: int | None
    exception_type: str
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > MAX_RETRY_MESSAGE_CHARS:
            object.__setattr__(self, "message", truncate(self.message, MAX_RETRY_MESSAGE_CHARS))

    def to_json(self) -> dict[str, Any]:
        """Return the retry's JSON form in the envelope."""
        return {
            "attempt": self.attempt,
            "at": to_iso(self.at_ms),
            "delay_ms": self.delay_ms,
            "exception_type": self.exception_type,
            "message": self.message,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Retry:
        """Read a retry from its JSON form."""
        at_ms = required_from_iso(value["at"])
        return cls(value["attempt"], at_ms, value["delay_ms"], value["exception_type"], value["message"])


@dataclass(frozen=True, slots=True)
class Distribution:
    """The deployment and worker that handled the record.

    Args:
        instance: The deployment or host.
        worker: The process on it.
        group: The consumer group of the asset.
        lease: What assigned the partition to this deployment. None if ownership is not shared.
    """

    instance: str | None = None
    worker: str | None = None
    group: str | None = None
    lease: str | None = None

    @classmethod
    def here(cls, *, instance: str | None = None, group: str | None = None, lease: str | None = None) -> Distribution:
        """Describe this process. ``instance`` names the deployment; without it, the host's name is used."""
        name = instance_name(instance)
        return cls(instance=name, worker=worker_name(name), group=group, lease=lease)


@dataclass(frozen=True, slots=True)
class PayloadReference:
    """Sizes and checksums of a payload that does not fit, to verify the record at the original coordinates.

    Args:
        key_bytes: Size of the key in bytes. None for a null key.
        key_sha256: SHA-256 checksum of the key, hexadecimal. None for a null key.
        value_bytes: Size of the value in bytes. None for a tombstone.
        value_sha256: SHA-256 checksum of the value, hexadecimal. None for a tombstone.
        headers_bytes: Total size of header names and values in bytes.
    """

    key_bytes: int | None
    key_sha256: str | None
    value_bytes: int | None
    value_sha256: str | None
    headers_bytes: int


def fields_to_json(value: OriginRange | Distribution | PayloadReference) -> dict[str, Any]:
    """Return the JSON form of a part: one entry for each field."""
    return {name: getattr(value, name) for name in value.__slots__}


def fields_of(cls: type, value: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a class's fields from a JSON object. Other names are ignored.

    Raises:
        KeyError: A field is missing.
    """
    names: tuple[str, ...] = cls.__slots__  # type: ignore[attr-defined]  # slots=True makes them
    return {name: value[name] for name in names}
