"""Faults of single records, and the names of the actions. `kpipe_platform.policies.actions` chooses one."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

MAX_MESSAGE_CHARS = 2_000
"""Maximum length of a fault's message. The dead letter contains it and must fit the record size limit."""

MAX_STACKTRACE_CHARS = 4_000
"""Maximum length of a fault's stack trace. The end is kept, because it contains the failing line."""

_CUT = "... "


class FaultAction(str, Enum):
    """Action for a record that failed."""

    STOP = "stop"
    """Fail the run with `RecordFaultError`, which names the record. Offsets do not move. The default."""

    DEAD_LETTER = "dead_letter"
    """Write the record and its fault to the dead-letter topic. Once that is acknowledged, the record is finished."""

    SKIP = "skip"
    """Count the record and continue without it: finished, with no output and no dead letter. Its data is lost."""

    RETHROW = "rethrow"
    """Fail the run with the exception that the user's code raised, so that Dagster's retry policies and hooks
    receive that exception instead of a kpipe error. Offsets do not move."""

    def __str__(self) -> str:
        """Return the value, as shown in configuration and metadata."""
        return self.value


class Component(str, Enum):
    """The part of the pipeline in which a record failed."""

    SOURCE = "source"
    """Reading the record from Kafka failed."""

    DECODE_KEY = "decode_key"
    """The key codec could not decode the key."""

    DECODE_VALUE = "decode_value"
    """The value codec could not decode the value."""

    STAGE = "stage"
    """The user's stage raised an exception for the record."""

    DESTINATION = "destination"
    """The destination refused the record's output."""

    DEAD_LETTER = "dead_letter"
    """The dead-letter destination refused the record's dead letter."""

    def __str__(self) -> str:
        """Return the value, as shown in headers, envelopes and metadata."""
        return self.value


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one record failed.

    Args:
        component: Where the record failed.
        kind: A short name to group faults by, such as ``missing_field``; see `kpipe_platform.codecs` for the kinds
            that codecs use.
        exception_type: The exception's class with its module; without a module for a built-in one, ``ValueError``.
        message: Description of the problem; truncated to `MAX_MESSAGE_CHARS`.
        at_ms: Time of the fault, milliseconds since the epoch.
        stacktrace: Python traceback; truncated to its last `MAX_STACKTRACE_CHARS`.
        field: The invalid field of the record, as a path such as ``legs[2].code``.
    """

    component: Component
    kind: str
    exception_type: str
    message: str
    at_ms: int
    stacktrace: str | None = None
    field: str | None = None

    def __post_init__(self) -> None:
        if len(self.message) > MAX_MESSAGE_CHARS:
            object.__setattr__(self, "message", truncate(self.message, MAX_MESSAGE_CHARS))
        if self.stacktrace is not None and len(self.stacktrace) > MAX_STACKTRACE_CHARS:
            kept = self.stacktrace[len(_CUT) - MAX_STACKTRACE_CHARS :]
            object.__setattr__(self, "stacktrace", _CUT + kept)

    @classmethod
    def from_exception(
        cls,
        component: Component,
        error: BaseException,
        *,
        kind: str | None = None,
        field: str | None = None,
        with_stacktrace: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> Fault:
        """Create a fault from an exception.

        Args:
            component: Where the exception was raised.
            error: The exception. Its attributes ``kind``, ``field`` and ``message`` are used if it has them.
            kind: Overrides the exception's kind; without either, the exception's class name is used.
            field: Overrides the exception's field.
            with_stacktrace: Whether to keep the traceback; it adds little for a record that cannot be decoded.
            clock: Returns seconds since the epoch.

        Returns:
            The fault, with message and traceback truncated.
        """
        own_kind, own_field, own_message = (
            value if isinstance(value, str) else None
            for value in (getattr(error, name, None) for name in ("kind", "field", "message"))
        )
        stacktrace = None
        if with_stacktrace and error.__traceback__ is not None:
            stacktrace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(
            component=component,
            kind=kind or own_kind or type(error).__name__,
            exception_type=qualified_name(type(error)),
            message=own_message or str(error) or type(error).__name__,
            at_ms=int(clock() * 1000),
            stacktrace=stacktrace,
            field=field or own_field,
        )


def qualified_name(cls: type) -> str:
    """Return a class's name with its module; without the module for built-in classes."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def truncate(text: str, limit: int) -> str:
    """Truncate a text to ``limit`` characters, including the ``...`` that marks a truncation."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
