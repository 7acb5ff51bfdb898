"""Why one record failed, and what may be done with it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

MAX_MESSAGE_CHARS = 2_000
"""Longest message that a fault keeps: it travels in the dead letter, inside the record's size limit."""

MAX_STACKTRACE_CHARS = 4_000
"""Longest stack trace that a fault keeps. The end is kept, because the failing line is there."""

_CUT = "... "


class FaultAction(str, Enum):
    """What to do with a record that failed."""

    STOP = "stop"
    """Fail the run with `RecordFaultError`, which names the record. Offsets are unmoved. The default."""

    DEAD_LETTER = "dead_letter"
    """Write the record and its fault to the dead-letter topic; once that is acked, the record is terminal."""

    SKIP = "skip"
    """Count the record and go on without it: terminal, without output or dead letter. Its data is lost."""

    RETHROW = "rethrow"
    """Fail the run with the exception that the user's code raised, so that Dagster's own retry policies and
    hooks see that exception and not one of ours. Offsets are unmoved."""

    def __str__(self) -> str:
        """The value: what configuration and metadata show."""
        return self.value


class Component(str, Enum):
    """The part of the pipeline in which a record failed."""

    SOURCE = "source"
    """Reading it from Kafka."""

    DECODE_KEY = "decode_key"
    """The key's codec could not read it."""

    DECODE_VALUE = "decode_value"
    """The value's codec could not read it."""

    STAGE = "stage"
    """The user's stage raised on it."""

    DESTINATION = "destination"
    """The destination would not take the output that came of it."""

    DEAD_LETTER = "dead_letter"
    """The dead-letter destination would not take it."""

    def __str__(self) -> str:
        """The value: what headers, envelopes and metadata show."""
        return self.value


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one record failed.

    Args:
        component: Where it failed.
        kind: A short name to count by, such as ``missing_field``; see `kpipe_platform.codecs` for those of
            codecs.
        exception_type: The exception's class with its module, ``ValueError`` for a built-in one.
        message: What was wrong; cut to `MAX_MESSAGE_CHARS`.
        at_ms: When, in milliseconds since the epoch.
        stacktrace: Python's traceback; cut to its last `MAX_STACKTRACE_CHARS`.
        field: The field of the record that was wrong, as a path such as ``legs[2].code``.
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
            object.__setattr__(self, "message", bounded(self.message, MAX_MESSAGE_CHARS))
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
        """Make a fault of an exception.

        Args:
            component: Where it was raised.
            error: The exception. Its own ``kind``, ``field`` and ``message`` are used where it has them.
            kind: Overrides the exception's kind; without either, the exception's class name.
            field: Overrides the exception's field.
            with_stacktrace: Whether to keep the traceback; it says little for a record that does not decode.
            clock: Seconds since the epoch.

        Returns:
            The fault, with message and traceback bounded.
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
    """A class's name with its module, without one for built-in classes."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def bounded(text: str, limit: int) -> str:
    """The text, cut to ``limit`` characters, the mark of the cut included."""
    return text if len(text) <= limit else text[: limit - 3] + "..."
