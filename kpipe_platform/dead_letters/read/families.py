"""Header families of dead letters: Kafka Connect's, Spring Kafka's, and those of installed packages.

A header family is the set of header names in which one tool records the origin and the failure of a dead letter.
A package adds a family with an entry point of the group `ENTRY_POINT_GROUP` that names a `HeaderFamily`. kpipe's own
headers are recognized in any case.

Source: Kafka Connect ``DeadLetterQueueReporter``; Spring Kafka ``DeadLetterPublishingRecoverer`` and its retry topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import NamedTuple

from kpipe_platform.dead_letters.envelope.origin import ORIGIN_HEADER, REDACTED_HEADER
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.records import Headers

ENTRY_POINT_GROUP = "kpipe_platform.dead_letter_families"
"""Group of the entry points that add header families."""

ADD_A_FAMILY = (
    f"for dead letters of another tool, install a package with an entry point in group {ENTRY_POINT_GROUP!r} "
    "that names its HeaderFamily"
)
"""Part of error messages: how to add support for the dead letters of another tool."""


@dataclass(frozen=True, slots=True)
class HeaderFamily:
    """The names of one tool's error headers. None, or an empty tuple, for headers that the tool does not write.

    If a field has several names, the first one that the dead letter has is used. If a dead letter has the headers of
    several hops, the oldest original coordinates and the newest exception are used.

    Args:
        name: Unique name of the family, shown by ``kpipe dlq``.
        topic: Original topic.
        partition: Original partition.
        offset: Original offset.
        timestamp: Original timestamp, milliseconds since the epoch.
        exceptions: The exception's class.
        cause: Class of the exception's cause.
        messages: The exception's message.
        stacktraces: The exception's stack trace.
        kind: A short reason.
        asset: The asset or connector that gave up on the record.
        group: The consumer group that gave up on the record.
        run: The run or task.
        attempts: Number of attempts to process the record.
        prefixes: Prefixes of the tool's error headers. A redrive strips all headers with these prefixes.
        names: Further names of the tool's error headers.
        binary_numbers: Whether numbers may be big-endian integers as well as text.
        keeps_timestamp: Whether the dead letter has the record's own timestamp rather than the time of its failure.
        refine: Called with the dead letter as read from its headers. Returns it with changes that the tool's rules
            imply: another exception, the record extracted from a document in the value, or ``from_source`` if the tool
            does not copy the whole record.
    """

    name: str
    topic: str | None = None
    partition: str | None = None
    offset: str | None = None
    timestamp: str | None = None
    exceptions: tuple[str, ...] = ()
    cause: str | None = None
    messages: tuple[str, ...] = ()
    stacktraces: tuple[str, ...] = ()
    kind: str | None = None
    asset: str | None = None
    group: str | None = None
    run: str | None = None
    attempts: str | None = None
    prefixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    binary_numbers: bool = False
    keeps_timestamp: bool = False
    refine: Callable[[FoundDeadLetter], FoundDeadLetter] | None = None


def _spring(name: str, prefix: str, prefixes: tuple[str, ...]) -> HeaderFamily:
    original, exception, key = f"{prefix}original-", f"{prefix}exception-", f"{prefix}key-exception-"
    return HeaderFamily(
        name,
        topic=f"{original}topic",
        partition=f"{original}partition",
        offset=f"{original}offset",
        timestamp=f"{original}timestamp",
        exceptions=(f"{exception}fqcn", f"{key}fqcn"),
        cause=f"{exception}cause-fqcn",
        messages=(f"{exception}message", f"{key}message"),
        stacktraces=(f"{exception}stacktrace", f"{key}stacktrace"),
        group=f"{original}consumer-group",
        attempts="retry_topic-attempts",
        prefixes=(*prefixes, "retry_topic-"),
        names=("springDeserializerExceptionKey", "springDeserializerExceptionValue"),
        binary_numbers=True,
    )


CONNECT = HeaderFamily(
    "connect",
    topic="__connect.errors.topic",
    partition="__connect.errors.partition",
    offset="__connect.errors.offset",
    exceptions=("__connect.errors.exception.class.name",),
    messages=("__connect.errors.exception.message",),
    stacktraces=("__connect.errors.exception.stacktrace",),
    kind="__connect.errors.stage",
    asset="__connect.errors.connector.name",
    run="__connect.errors.task.id",
    prefixes=("__connect.errors.",),
    keeps_timestamp=True,
)
SPRING = _spring("spring", "kafka_dlt-", ("kafka_dlt-",))
# Dead letters that went through Spring's retry topics have these header names.
SPRING_RETRY = _spring("spring_retry", "kafka_", ("kafka_original-", "kafka_exception-", "kafka_key-exception-"))


class _Known(NamedTuple):
    families: tuple[HeaderFamily, ...]
    names: frozenset[str]
    prefixes: tuple[str, ...]


@lru_cache(maxsize=1)
def _known() -> _Known:
    """Load all families, once in each process. After a failure, the next call tries again."""
    families = [CONNECT, SPRING, SPRING_RETRY]
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        family = _loaded(entry_point)
        if family.name in {each.name for each in families} | {"kpipe", "unknown"}:
            msg = f"entry point {entry_point.name!r} adds another dead-letter family named {family.name!r}"
            raise ConfigError(msg, fix="rename the family, or uninstall one of the packages")
        families.append(family)
    names = {REDACTED_HEADER, ORIGIN_HEADER}.union(*(family.names for family in families))
    prefixes = tuple(dict.fromkeys(prefix for family in families for prefix in family.prefixes))
    return _Known(tuple(families), frozenset(names), prefixes)


def _loaded(entry_point: metadata.EntryPoint) -> HeaderFamily:
    where = f"entry point {entry_point.name!r} = {entry_point.value!r} in group {ENTRY_POINT_GROUP!r}"
    try:
        family = entry_point.load()
    except Exception as error:  # importing runs the package's code
        msg = f"{where} cannot be loaded: {type(error).__name__}: {error}"
        raise ConfigError(msg, fix="correct the package that declares it, or uninstall the package") from error
    if not isinstance(family, HeaderFamily):
        msg = f"{where} names an object of type {type(family).__name__}"
        raise ConfigError(msg, fix="name a kpipe_platform.dead_letters.HeaderFamily in the entry point")
    return family


def header_families() -> tuple[HeaderFamily, ...]:
    """Return the built-in header families and those of installed packages.

    Raises:
        ConfigError: An entry point does not load, does not name a family, or repeats the name of another family.
    """
    return _known().families


def is_error_header(name: str) -> bool:
    """Return whether a header of this name was added by a dead-letter writer and is not one of the record's own."""
    _, names, prefixes = _known()
    return name in names or name.startswith(prefixes)


def own_headers(headers: Headers) -> Headers:
    """Return the record's own headers, unchanged and in their order."""
    return tuple(pair for pair in headers if not is_error_header(pair[0]))
