"""The user's redaction hook, which removes confidential data from a record before it is dead-lettered.

A dead-letter topic is often read by more people, and retained for longer, than its source. The hook is named by a
string, ``package.module:function``, because it is part of the configuration and because each of the writer's processes
imports it separately.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePath
from typing import TypeAlias

from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.client.functions import load_function
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Fault

Redact: TypeAlias = Callable[[KafkaRecord, Fault], KafkaRecord | tuple[KafkaRecord, Fault]]
"""Takes the record with its original bytes, and the fault. Returns the redacted record, or both redacted.

A fault's message and stack trace may quote the record's values, so most hooks return both.
"""


# Each IO manager has at most one hook. Failures are not cached, so the next run finds a corrected module.
@lru_cache(maxsize=64)
def load_redaction(path: str) -> Redact:
    """Import the hook. Cached: each process imports it once.

    Args:
        path: ``package.module:function``.

    Returns:
        The hook.

    Raises:
        ConfigError: The function does not exist, its module cannot be imported, or it is not callable.
    """
    hook: Redact = load_function(
        path, what="redaction hook", takes="(record: KafkaRecord, fault: Fault)", setting="redact"
    )
    return hook


def redacted(record: KafkaRecord, fault: Fault, path: str) -> tuple[KafkaRecord, Fault]:
    """Apply the hook to a record and its fault.

    Args:
        record: The failed record with its original bytes.
        fault: Why it failed.
        path: The hook, ``package.module:function``.

    Returns:
        Record and fault as they may be written.

    Raises:
        ConfigError: The hook cannot be loaded.
        DeadLetterError: The hook raised an exception, or did not return a record at the same coordinates, with or
            without a fault. The unredacted record is never written instead.
    """
    hook = load_redaction(path)
    try:
        result = hook(record, fault)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        # Without the exception's message, which may quote the confidential data.
        line = traceback.extract_tb(error.__traceback__)[-1]
        what = f"raised {type(error).__name__} in {line.name} ({PurePath(line.filename).name}, line {line.lineno})"
        raise _failed(record, path, what) from None
    kept, why = result if isinstance(result, tuple) and len(result) == 2 else (result, fault)
    if not isinstance(kept, KafkaRecord) or not isinstance(why, Fault):
        raise _failed(record, path, f"returned {_names(result)}")
    if (kept.topic, kept.partition, kept.offset) != (record.topic, record.partition, record.offset):
        raise _failed(record, path, f"returned a record at {kept.coordinates}")
    return kept, why


def without_message(fault: Fault) -> Fault:
    """Return a fault for logs and metadata when a hook is set, without its message, field and stack trace.

    They may quote the record. A dead letter has them in redacted form.
    """
    message = f"{fault.kind} (message hidden because a redaction hook is set)"
    return replace(fault, message=message, field=None, stacktrace=None)


def _failed(record: KafkaRecord, path: str, what: str) -> DeadLetterError:
    msg = f"the redaction hook {path!r} {what} for {record.coordinates}; the dead letter was not written"
    fix = "return the record, or (record, fault), with the same topic, partition and offset from the hook"
    return DeadLetterError(msg, fix=fix, redact=path)


def _names(result: object) -> str:
    if isinstance(result, tuple):
        return f"({', '.join(type(part).__name__ for part in result)})"
    return type(result).__name__
