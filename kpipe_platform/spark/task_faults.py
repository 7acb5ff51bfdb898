"""Failed records in the writer task: counted, sampled, skipped, or made into dead letters."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from kpipe_platform.deadletter import build_dead_letter
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.fetch import RecordFetcher
from kpipe_platform.kafka.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.spark.outputs import Row
from kpipe_platform.spark.writer_spec import FaultSample, Rejected, WriterSpec

# Samples kept for the error message and the metadata.
_SAMPLES = 10
# Distinct reasons that are counted; the rest is counted together, so that a message with a value in it cannot grow
# the metadata without bound.
_REASONS = 50
_TIMESTAMP_TYPES = {0: "create_time", 1: "log_append_time"}


class FaultRows:
    """Applies the action to failed records.

    Attributes:
        seen: Failed records seen.
        stops: True when a record failed and the action is to stop the run.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        self.seen = 0
        self.samples: list[FaultSample] = []
        self.reasons: dict[str, int] = {}
        self.dead_lettered: dict[int, int] = {}
        self.skipped: dict[int, int] = {}
        self._handled: set[Rejected] = set()
        self._fetcher = RecordFetcher(spec.source_settings, spec.slice.group, spec.isolation)

    @property
    def stops(self) -> bool:
        """True when a record failed and the action is to stop the run."""
        return self.seen > 0 and self._spec.action in (FaultAction.STOP, FaultAction.RETHROW)

    def dead_letters(self, part: pa.RecordBatch) -> Iterator[tuple[str, Row]]:
        """Dead letters of the records in a batch of fault rows; none where the action asks for none."""
        for row in part.to_pylist():
            planned = self._spec.slice.ranges[row["src"]].range
            record = KafkaRecord(
                topic=planned.topic,
                partition=planned.partition,
                offset=row["src_offset"],
                timestamp_ms=row["timestamp_ms"],
                timestamp_type=_TIMESTAMP_TYPES.get(row["timestamp_type"]),  # type: ignore[arg-type]
                key=row["key"],
                value=row["value"],
                headers=tuple((h["key"], h["value"]) for h in row["headers"]),
            )
            letter = self._take(row["src"], record, self._decode_fault(row, record))
            if letter is not None:
                yield letter

    def rejected_output(self, row: Row, fault: Fault) -> tuple[str, Row] | None:
        """The dead letter for an output that the destination will not take.

        Where its source is known, the source record is dead-lettered, once however many outputs it had; otherwise
        the output record itself is, with the slice's range as its origin.
        """
        if row.src is None or row.src_offset is None:
            record = KafkaRecord(
                topic=self._spec.topic,
                timestamp_ms=row.timestamp_ms,
                key=row.key,
                value=row.value,
                headers=tuple(row.headers),
            )
            return self._take(0, record, fault)
        if row.identity in self._handled:
            return None
        self._handled.add(row.identity)
        planned = self._spec.slice.ranges[row.src].range
        record = self._fetcher.get(planned.topic, planned.partition, row.src_offset)
        return self._take(row.src, record, fault)

    def _take(self, src: int, record: KafkaRecord, fault: Fault) -> tuple[str, Row] | None:
        spec = self._spec
        self.seen += 1
        planned = spec.slice.ranges[src].range
        if len(self.samples) < _SAMPLES:
            self.samples.append(FaultSample(planned.topic, planned.partition, record.offset, fault))
        reason = fault.message if fault.message in self.reasons or len(self.reasons) < _REASONS else "others"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if spec.action is FaultAction.SKIP:
            self.skipped[src] = self.skipped.get(src, 0) + 1
            return None
        if spec.action is not FaultAction.DEAD_LETTER:
            return None
        context = spec.dead_letters[src]
        if context is None:
            msg = f"{planned}: a record failed and there is no dead-letter destination"
            raise DeadLetterError(msg, fix="give the KafkaIOManager a KafkaDeadLetterDestination")
        self.dead_lettered[src] = self.dead_lettered.get(src, 0) + 1
        origin = None if record.offset is not None else planned
        letter = build_dead_letter(record, fault, context, int(time.time() * 1000), origin_range=origin)
        return letter.topic, Row(letter.key, letter.value, list(letter.headers), None, letter.timestamp_ms)

    def _decode_fault(self, row: dict[str, object], record: KafkaRecord) -> Fault:
        component = Component(row["component"])
        key_codec, value_codec = self._spec.codecs[row["src"]]  # type: ignore[call-overload]
        codec, data = (key_codec, record.key) if component is Component.DECODE_KEY else (value_codec, record.value)
        found = codec.explain(data or b"")
        return Fault(component, found.kind, "DecodeFault", found.message, int(time.time() * 1000), field=found.field)

    def close(self) -> None:
        """Close the client for original records."""
        self._fetcher.close()

    def __enter__(self) -> FaultRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
