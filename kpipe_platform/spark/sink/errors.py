"""Errors for slices that failed or rejected records stop."""

from __future__ import annotations

from collections.abc import Mapping

from kpipe_platform.codecs import DecodeFault
from kpipe_platform.errors import DeadLetterLimitError, DestinationRejectedError, RecordFaultError, StageFailedError
from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.policies.limits import DeadLetterLimit
from kpipe_platform.spark.sink.spec import Outcome, Rejected, WriterSpec

_TOP_REASONS = 10


def stopped_by_faults(spec: WriterSpec, outcome: Outcome) -> Exception:
    """The error for a run that a failed record stops; its type depends on the record's action."""
    samples = outcome.samples
    if samples and samples[0].action is FaultAction.RETHROW:
        fault = samples[0].fault
        if fault.component is Component.STAGE:
            cause = f"{fault.exception_type}: {fault.message}"
            return StageFailedError(str(samples[0]), fix="fix the stage or the data", cause=cause, isolable=False)
        return DecodeFault(str(samples[0]), kind=fault.kind, field=fault.field)
    listed = "\n".join(f"    {sample}" for sample in samples)
    msg = f"{outcome.faults:,} record(s) of {spec.slice} failed; the first:\n{listed}"
    return RecordFaultError(
        msg,
        fix="fix the records or the schema; or set on_fault=FaultAction.DEAD_LETTER (or SKIP) for such records",
        faults=outcome.faults,
        samples=samples,
        slice=str(spec.slice),
    )


def over_limit(spec: WriterSpec, outcome: Outcome) -> DeadLetterLimitError:
    """The error for a slice in which more records failed than the limit allows."""
    total = outcome.total
    failed = total.dead_lettered + total.skipped
    return too_many_faults(str(spec.slice), spec.limit, failed, total.read, outcome.reasons)


def too_many_faults(
    where: str, limit: DeadLetterLimit, failed: int, read: int, reasons: Mapping[str, int]
) -> DeadLetterLimitError:
    """The error for a slice, or other work, in which more records failed than the limit allows."""
    top = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:_TOP_REASONS]
    listed = "\n".join(f"    {count:,} x {reason}" for reason, count in top)
    msg = (
        f"{failed:,} of {read:,} records of {where} failed ({failed / max(read, 1):.1%}); the limit is "
        f"{limit.ratio:.1%}. Nothing was written. The most frequent reasons:\n{listed}"
    )
    return DeadLetterLimitError(
        msg,
        fix="fix the stage or the producer, then run again; or raise max_dead_letter_ratio if this ratio is expected",
        failed=failed,
        records=read,
        reasons=dict(reasons),
    )


def rejected_records(spec: WriterSpec, rejected: Mapping[Rejected, Fault]) -> DestinationRejectedError:
    """The error for a run that stops because the destination rejects records."""
    where, fault = next(iter(rejected.items()))
    topic = "topic" if len(spec.outputs) == 1 else "one of the topics"
    at = "an output record"
    if isinstance(where, tuple):
        planned = spec.slice.ranges[where[0]].range
        at = f"the output of {planned.topic}/{planned.partition} offset {where[1]}"
    return DestinationRejectedError(
        f"{spec.slice}: {topic} {spec.shown_topics} rejects {len(rejected):,} record(s); {at}: {fault.message}",
        fix="change the stage or the topic's settings, or dead-letter them: on_fault=FaultAction.DEAD_LETTER",
        reasons=reasons_of(rejected),
    )


def reasons_of(rejected: Mapping[Rejected, Fault]) -> dict[str, int]:
    """Number of rejected records by kind of fault."""
    reasons: dict[str, int] = {}
    for fault in rejected.values():
        reasons[fault.kind] = reasons.get(fault.kind, 0) + 1
    return reasons
