"""The parts of a dead letter beside the record and its fault, each with its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kpipe_platform.dead_letters.envelope.times import required_from_iso, to_iso
from kpipe_platform.kafka.model.instance_names import instance_name, worker_name
from kpipe_platform.policies.faults import bounded

SCHEMA = "kpipe.dead_letter/1"
"""Name and version of the envelope."""

MAX_RETRY_MESSAGE_CHARS = 500
"""Longest message that a retry keeps: one dead letter may have many, inside the record's size limit."""


@dataclass(frozen=True, slots=True)
class OriginRange:
    """The offsets ``[start, end)`` of one partition that a rejected output record came from.

    An output whose stage dropped ``_kafka`` has no single source record; its slice is all that is known.
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
        duration_ms: How long it took; None where it did not end.
    """

    name: str
    started_ms: int
    duration_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The segment in the envelope."""
        return {"name": self.name, "started_at": to_iso(self.started_ms), "duration_ms": self.duration_ms}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Segment:
        """The segment of an envelope."""
        return cls(value["name"], required_from_iso(value["started_at"]), value["duration_ms"])


@dataclass(frozen=True, slots=True)
class Retry:
    """One attempt that was made again before the record was given up.

    Args:
        attempt: Number of the attempt, from 1.
        at_ms: When it failed, milliseconds since the epoch.
        delay_ms: How long the next attempt waited, milliseconds; None for the last one.
        exception_type: What it failed with.
        message: What the exception said; cut to `MAX_RETRY_MESSAGE_CHARS`.
    """

    attempt: int
    at_ms: int
    delay_ms: int | None
    exception_type: str
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > MAX_RETRY_MESSAGE_CHARS:
            object.__setattr__(self, "message", bounded(self.message, MAX_RETRY_MESSAGE_CHARS))

    def to_json(self) -> dict[str, Any]:
        """The retry in the envelope."""
        return {
            "attempt": self.attempt,
            "at": to_iso(self.at_ms),
            "delay_ms": self.delay_ms,
            "exception_type": self.exception_type,
            "message": self.message,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Retry:
        """The retry of an envelope."""
        at_ms = required_from_iso(value["at"])
        return cls(value["attempt"], at_ms, value["delay_ms"], value["exception_type"], value["message"])


@dataclass(frozen=True, slots=True)
class Distribution:
    """Which of several deployments and workers handled the record.

    Args:
        instance: The deployment or host.
        worker: The process on it.
        group: The consumer group of the asset.
        lease: What gave this deployment the partition; None where ownership is not shared.
    """

    instance: str | None = None
    worker: str | None = None
    group: str | None = None
    lease: str | None = None

    @classmethod
    def here(cls, *, instance: str | None = None, group: str | None = None, lease: str | None = None) -> Distribution:
        """This process, of this host or of the deployment that is named."""
        name = instance_name(instance)
        return cls(instance=name, worker=worker_name(name), group=group, lease=lease)


@dataclass(frozen=True, slots=True)
class PayloadReference:
    """What is known of a payload that does not fit: enough to find it at its coordinates and to recognise it.

    Args:
        key_bytes: Size of the key; None for a null key.
        key_sha256: Checksum of the key, hexadecimal.
        value_bytes: Size of the value; None for a tombstone.
        value_sha256: Checksum of the value, hexadecimal.
        headers_bytes: Size of all header names and values.
    """

    key_bytes: int | None
    key_sha256: str | None
    value_bytes: int | None
    value_sha256: str | None
    headers_bytes: int


def fields_to_json(value: OriginRange | Distribution | PayloadReference) -> dict[str, Any]:
    """A part whose JSON form has the names of its fields."""
    return {name: getattr(value, name) for name in value.__slots__}


def fields_of(cls: type, value: dict[str, Any]) -> dict[str, Any]:
    """Of a JSON object the values of a class's fields; other names are left out.

    Raises:
        KeyError: One is missing.
    """
    names: tuple[str, ...] = cls.__slots__  # type: ignore[attr-defined]  # slots=True makes them
    return {name: value[name] for name in names}
