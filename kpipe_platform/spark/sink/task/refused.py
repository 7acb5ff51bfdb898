"""Finding the records that the brokers refuse.

A broker refuses a whole batch because of one record and does not report which. The suspect records are produced in
transactions that are always aborted, so that ``read_committed`` consumers never see them, and are halved until each
refused record is isolated.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka import KafkaError, KafkaException, Producer

from kpipe_platform.kafka.client._compat import MAX_PURGED, PURGED_CODES, denied_cause
from kpipe_platform.kafka.client.calls import kafka_error, not_delivered, translate
from kpipe_platform.kafka.client.producer import AckedProducer, GiveUpError
from kpipe_platform.policies.faults import Component, Fault
from kpipe_platform.spark.sink.spec import WriterSpec
from kpipe_platform.spark.sink.task.outputs import Row

# Number of records per probe: small enough that halving is cheap, large enough that a clean slice needs few probes.
_PROBE_RECORDS = 1_000


def find_refused(
    producer: Producer, spec: WriterSpec, topic: str, rows: list[Row], refusals: Collection[int]
) -> list[tuple[Row, Fault]]:
    """Find the rows that the brokers refuse.

    Args:
        producer: Transactional and initialized, with no open transaction. It has none on return either.
        spec: Timeouts and connection.
        topic: The topic of the rows.
        rows: The suspect rows.
        refusals: Error codes that a record causes.

    Returns:
        The refused rows, each with the brokers' reason.

    Raises:
        KpipeError: The brokers failed for another reason.
    """
    refused: list[tuple[Row, Fault]] = []
    pending = [rows[i : i + _PROBE_RECORDS] for i in range(0, len(rows), _PROBE_RECORDS)]
    purged = 0
    while pending:
        part = pending.pop()
        error = _probe(producer, spec, topic, part, refusals)
        if error is None:
            continue
        if error.code() in PURGED_CODES and purged < MAX_PURGED:
            purged += 1
            pending.append(part)
            continue
        purged = 0
        if error.code() not in refusals:
            raise translate(error, spec.settings, "find rejected records", needs="Write", topic=topic)
        if len(part) == 1:
            refused.append((part[0], _fault(error, topic)))
        else:
            middle = len(part) // 2
            pending += [part[:middle], part[middle:]]
    return refused


def _probe(
    producer: Producer, spec: WriterSpec, topic: str, rows: list[Row], refusals: Collection[int]
) -> KafkaError | None:
    """Produce rows in a transaction and abort it.

    Returns:
        The brokers' error, preferably a refusal; None if they accept all rows.

    Raises:
        KpipeError: The brokers did not respond in time, or the transaction cannot be aborted.
    """
    sink = AckedProducer(producer)
    try:
        producer.begin_transaction()
        sink.send_all(topic, (row.message for row in rows))
        left = sink.flush(spec.delivery_timeout_s)
    except GiveUpError:
        left = 0
    except KafkaException as exception:
        sink.failures.append(kafka_error(exception))
        left = 0
    # A failed batch also fails queued batches, and the abort purges the rest. Only failures before the abort count.
    failures = [denied_cause(producer, error) for error in sink.failures[:1]] + sink.failures[1:]
    try:
        producer.abort_transaction(spec.settings.request_timeout_s)
    except KafkaException as exception:
        raise translate(exception, spec.settings, "find rejected records", topic=topic) from exception
    if left:
        raise not_delivered(spec.settings, str(spec.slice), left)
    refused = next((error for error in failures if error.code() in refusals), None)
    return refused or (failures[0] if failures else None)


def _fault(error: KafkaError, topic: str) -> Fault:
    return Fault(
        Component.DESTINATION,
        "refused",
        error.name(),
        f"the brokers reject the output record for topic {topic!r}: {error.str()}",
        int(time.time() * 1000),
    )
