"""Every error that kpipe raises, in one tree.

KpipeError
├── PartitionsFailedError             some partitions of a range run failed; the others are committed and reported
├── TerminalError                     a retry does not help: operator action needed
│   ├── ConfigError                   a setting or a definition is wrong; raised before any work starts
│   │   └── OffsetsNotStoredError     an asset reads from Kafka, but nothing would store its offsets
│   ├── EnvironmentSetupError         Java, a jar, a port, disk or an optional package is missing
│   ├── TopicNotFoundError            the topic or the partition does not exist
│   ├── AuthenticationFailedError     the broker or the schema registry refused the credentials, or TLS failed
│   ├── AuthorizationFailedError      an ACL or the schema registry denies the call
│   ├── SchemaNotFoundError           the schema registry does not have the schema, the subject or the version
│   ├── IncompatibleSchemaError       the schema registry refuses the schema: it breaks the subject's compatibility
│   ├── LostRangeError                retention passed the group's offset
│   ├── TopicRecreatedError           the topic was recreated after the offset was stored
│   ├── OffsetsVanishedError          the group has no offset: it was renamed, or the offset was deleted during the run
│   ├── NoStartOffsetError            the group is new, and its start policy is `"error"`
│   ├── DecodeFault, EncodeFault      a codec cannot decode or encode a value (`kpipe_platform.codecs`)
│   ├── RecordFaultError              a record failed and its action is to stop the run
│   ├── DeadLetterLimitError          more records failed than the limit allows
│   ├── StageFailedError              the user's stage raised an exception
│   ├── DestinationRejectedError      the destination refused records, and their action is to stop the run
│   └── DeadLetterError               a dead letter cannot be written
└── TransientError                    offsets did not move; the same run may succeed later
    ├── BrokerUnavailableError        the brokers did not respond within the deadline
    │   └── CommitUnknownError        the brokers did not respond to a commit: its outcome is unknown
    ├── BrokerStartError              the embedded broker did not become ready
    ├── RegistryUnavailableError      the schema registry did not respond in time, or responded with a server error
    ├── UnknownSchemaIdError          a record has a schema id that was not known when the slice was read
    ├── ForeignMemberError            another consumer uses the asset's group
    ├── OffsetsPendingError           an open transaction holds the group's offset
    ├── OffsetConflictError           another run moved the group's offset between plan and commit
    │   └── FencedError               a newer owner of the transactional id took over
    ├── TransactionTimedOutError      the transaction was open for longer than its timeout
    ├── DeliveryError                 outputs were not acknowledged
    └── EngineUnavailableError        the Spark session cannot be created, or died

Every error takes a message and keyword attributes. The message contains what happened, where (topic, partition,
offset) and how to fix it; the attributes contain the same facts for programs. All errors pickle, because they
cross Spark workers and Dagster's step processes.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

Part = Literal["source", "stage", "destination", "dead_letter"]
"""Parts of the pipeline that have their own retry policy."""


class KpipeError(Exception):
    """Base class of all kpipe errors.

    Args:
        message: What happened and where, in one or two sentences.
        fix: How to fix it; shown after the message.
        **attributes: Facts for programs, for example ``topic="flights"``, ``partition=3``.
    """

    part: Part | None = None
    """The part of the pipeline that failed, whose retry policy applies; None if unknown."""

    def __init__(self, message: str, *, fix: str | None = None, **attributes: Any) -> None:
        self.message = message
        self.fix = fix
        self.attributes = attributes
        super().__init__(message if fix is None else f"{message}\n  How to fix: {fix}")

    def __getattr__(self, name: str) -> Any:
        # Called only for names that are not real attributes. `attributes` is read through __dict__, because
        # unpickling gets attributes before __init__ has run and would recurse.
        attributes = self.__dict__.get("attributes", {})
        if name in attributes:
            return attributes[name]
        msg = f"{type(self).__name__} has no attribute {name!r}"
        raise AttributeError(msg)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fix, self.attributes, self.part)


def _rebuild(
    cls: type[KpipeError], message: str, fix: str | None, attributes: dict[str, Any], part: Part | None
) -> KpipeError:
    error = cls(message, fix=fix, **attributes)
    error.part = part
    return error


class TerminalError(KpipeError):
    """A retry does not help: operator action is needed first."""


class TransientError(KpipeError):
    """Offsets did not move; the same run may succeed later."""


class PartitionsFailedError(KpipeError):
    """Some partitions of a range run failed; the others are committed and reported. ``errors`` contains each error."""


class ConfigError(TerminalError):
    """A setting or a definition is wrong; raised before any work starts."""


class OffsetsNotStoredError(ConfigError):
    """An asset reads from Kafka, but nothing would store its offsets."""


class EnvironmentSetupError(TerminalError):
    """Java, a jar, a port, disk space, the network or an optional package is missing."""


class TopicNotFoundError(TerminalError):
    """The topic or the partition does not exist."""


class AuthenticationFailedError(TerminalError):
    """The broker or the schema registry refused the credentials, or TLS failed."""


class AuthorizationFailedError(TerminalError):
    """An ACL or the schema registry denies the call."""


class SchemaNotFoundError(TerminalError):
    """The schema registry does not have the schema, the subject or the version."""


class IncompatibleSchemaError(TerminalError):
    """The schema registry refuses the schema: it breaks the subject's compatibility. ``reasons`` contains why."""


class LostRangeError(TerminalError):
    """Retention, or DeleteRecords, passed the group's committed offset."""


class TopicRecreatedError(TerminalError):
    """The topic's id differs from the one stored with the group's offset."""


class OffsetsVanishedError(TerminalError):
    """The group has no offset, although this run stored one or Dagster has a materialization of another group."""


class NoStartOffsetError(TerminalError):
    """The group is new and the source's start policy is ``"error"``."""


class _CodecFault(TerminalError, ValueError):
    """Base class of both faults: a message with its kind and field.

    Args:
        message: What is wrong, and where in the data.
        kind: What is wrong in one word, such as ``not_utf8``. Counted and shown in metadata.
        field: Path of the invalid field, such as ``legs[2].code``. None if the fault is not in a single field.
        fix: How to fix it. Usually None, because only the producer can fix it.
    """

    def __init__(self, message: str, *, kind: str, field: str | None = None, fix: str | None = None) -> None:
        super().__init__(message, fix=fix, kind=kind, field=field)
        self.kind = kind
        self.field = field


class DecodeFault(_CodecFault):
    """The bytes do not decode. Raised by a codec's ``decode``, returned by its ``diagnose``."""


class EncodeFault(_CodecFault):
    """The codec cannot encode the value. Raised by a codec's ``encode``."""


class RecordFaultError(TerminalError):
    """A record failed and the action for it is to stop the run."""


class DeadLetterLimitError(TerminalError):
    """More records failed than ``max_dead_letter_ratio`` allows; nothing of the slice was written."""


class StageFailedError(TerminalError):
    """The user's stage raised an exception; offsets did not move."""


class DestinationRejectedError(TerminalError):
    """The destination refused some records, and the action for them is to stop the run."""


class DeadLetterError(TerminalError):
    """A dead letter cannot be written; offsets did not move."""


class BrokerUnavailableError(TransientError):
    """The brokers did not respond within the deadline of a call."""


class CommitUnknownError(BrokerUnavailableError):
    """The brokers did not respond to a commit within its deadline; its outcome is unknown."""


class BrokerStartError(TransientError):
    """The embedded broker did not become ready."""


class RegistryUnavailableError(TransientError):
    """The schema registry did not respond within the time-outs, or responded with 429 or a server error."""


class UnknownSchemaIdError(TransientError):
    """A record has a schema id that was not known when the slice was read. The slice is read again with all its ids."""


class ForeignMemberError(TransientError):
    """Another consumer uses the asset's group."""


class OffsetsPendingError(TransientError):
    """An open transaction, neither committed nor aborted, holds the group's offset."""


class OffsetConflictError(TransientError):
    """Another run moved the group's offset between plan and commit."""


class FencedError(OffsetConflictError):
    """A newer owner of the transactional id took over."""


class TransactionTimedOutError(TransientError):
    """The transaction was open for longer than its timeout; the broker aborted it."""


class DeliveryError(TransientError):
    """Outputs were not acknowledged by the brokers."""


class EngineUnavailableError(TransientError):
    """The Spark session cannot be created, or died during the run."""


def require_packages(user: str, extra: str, *modules: str) -> None:
    """Check that optional packages are installed.

    Args:
        user: What needs them, for the message.
        extra: The extra of kpipe-platform that installs them.
        modules: Modules of the packages.

    Raises:
        EnvironmentSetupError: A package is missing.
    """
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        msg = f"{user} needs the optional package {error.name}, which is not installed."
        raise EnvironmentSetupError(msg, fix=f"pip install 'kpipe-platform[{extra}]'", package=error.name) from error
