"""Error headers of dead letters, in the formats of Kafka Connect and Spring Kafka.

Source: Kafka Connect ``DeadLetterQueueReporter``; Spring Kafka ``DeadLetterPublishingRecoverer``.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpipe_platform.dead_letters.envelope.parts import OriginRange
from kpipe_platform.dead_letters.write.context import DeadLetterContext
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault

HeaderList = list[tuple[str, bytes | None]]

CONNECT_PREFIX = "__connect.errors."
SPRING_PREFIX = "kafka_dlt-"

_STAGES = {
    Component.SOURCE: b"KAFKA_CONSUME",
    Component.DECODE_KEY: b"KEY_CONVERTER",
    Component.DECODE_VALUE: b"VALUE_CONVERTER",
    Component.STAGE: b"TRANSFORMATION",
    Component.DESTINATION: b"KAFKA_PRODUCE",
    Component.DEAD_LETTER: b"KAFKA_PRODUCE",
}
"""Kafka Connect's ``Stage`` names of kpipe's components."""

_TIMESTAMP_TYPES = {"create_time": b"CreateTime", "log_append_time": b"LogAppendTime"}


def error_headers(
    record: KafkaRecord, fault: Fault, context: DeadLetterContext, origin: OriginRange | None = None
) -> HeaderList:
    """Return the error headers of the context's families, without the record's own headers.

    Args:
        record: The record that failed. Headers that it already has keep their position and value.
        fault: Why it failed.
        context: The asset, run and group, and the families to write.
        origin: The slice of a record whose own coordinates are unknown.

    Returns:
        Header pairs.
    """
    headers: HeaderList = []
    for family in context.header_families:
        write = connect_headers if family == "connect" else spring_headers
        headers += write(record, fault, context, origin)
    return headers


def connect_headers(
    record: KafkaRecord, fault: Fault, context: DeadLetterContext, origin: OriginRange | None = None
) -> HeaderList:
    """Return Kafka Connect's ``__connect.errors.*`` headers as UTF-8 text, without those of unknown values.

    An existing header of the same name is not overwritten, so that the first failure of a record stays
    visible. ``connector.name`` is the asset, ``task.id`` the run, and ``stage`` Connect's name for the component.
    """
    topic, partition = (origin.topic, origin.partition) if origin is not None else (record.topic, record.partition)
    headers: HeaderList = [
        ("__connect.errors.topic", _text(topic)),
        ("__connect.errors.partition", _text(partition)),
        ("__connect.errors.offset", _text(record.offset)),
        ("__connect.errors.connector.name", _text(context.asset)),
        ("__connect.errors.task.id", _text(context.run_id)),
        ("__connect.errors.stage", _STAGES[fault.component]),
        ("__connect.errors.class.name", b"kpipe_platform." + fault.component.value.encode()),
        ("__connect.errors.exception.class.name", _text(fault.exception_type)),
        ("__connect.errors.exception.message", _text(fault.message)),
        ("__connect.errors.exception.stacktrace", _text(fault.stacktrace)),
    ]
    taken = _names(record, CONNECT_PREFIX)
    return [pair for pair in headers if pair[1] is not None and pair[0] not in taken]


def spring_headers(
    record: KafkaRecord, fault: Fault, context: DeadLetterContext, origin: OriginRange | None = None
) -> HeaderList:
    """Return Spring Kafka's ``kafka_dlt-*`` headers: numbers as big-endian binary, the rest as UTF-8 text.

    Existing coordinates are kept, because readers use the first ones. The exception is added after existing
    ones, because readers use the last one.
    """
    topic, partition = (origin.topic, origin.partition) if origin is not None else (record.topic, record.partition)
    originals: HeaderList = [
        ("kafka_dlt-original-topic", _text(topic)),
        ("kafka_dlt-original-partition", _int(partition, 4)),
        ("kafka_dlt-original-offset", _int(record.offset, 8)),
        ("kafka_dlt-original-timestamp", _int(record.timestamp_ms, 8)),
        ("kafka_dlt-original-timestamp-type", _TIMESTAMP_TYPES.get(record.timestamp_type or "")),
        ("kafka_dlt-original-consumer-group", _text(context.group)),
    ]
    kind = "key-exception" if fault.component is Component.DECODE_KEY else "exception"
    exceptions: HeaderList = [
        (f"kafka_dlt-{kind}-fqcn", _text(fault.exception_type)),
        (f"kafka_dlt-{kind}-message", _text(fault.message)),
        (f"kafka_dlt-{kind}-stacktrace", _text(fault.stacktrace)),
    ]
    taken = _names(record, SPRING_PREFIX)
    kept = [pair for pair in originals if pair[0] not in taken]
    return [pair for pair in (*kept, *exceptions) if pair[1] is not None]


def coordinate_headers(headers: Iterable[tuple[str, bytes | None]]) -> HeaderList:
    """Return only the error headers with the record's coordinates and exception class: the minimum to keep."""
    ends = ("topic", "partition", "offset", "exception.class.name", "exception-fqcn")
    return [pair for pair in headers if pair[0].endswith(ends)]


def _names(record: KafkaRecord, prefix: str) -> set[str]:
    return {name for name, _ in record.headers if name.startswith(prefix)} if record.headers else set()


def _text(value: str | int | None) -> bytes | None:
    # A lone surrogate has no UTF-8 form; it becomes a backslash escape.
    return None if value is None else str(value).encode("utf-8", "backslashreplace")


def _int(value: int | None, size: int) -> bytes | None:
    return None if value is None else value.to_bytes(size, "big", signed=True)
