"""Failed records in the writer task: counts, samples, and dead letters."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from kpipe_platform.dead_letters import Segment, build_dead_letter
from kpipe_platform.dead_letters.write.redaction import without_message
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.client.clients import Closable
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.read.fetch import RecordFetcher
from kpipe_platform.policies.actions import stops
from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.spark.sink.spec import FaultSample, Rejected, WriterSpec
from kpipe_platform.spark.sink.task.outputs import Row
from kpipe_platform.spark.stage.notes import RowFault

logger = logging.getLogger(__name__)

# Number of samples kept for the error message and the metadata.
_SAMPLES = 10
# Number of distinct reasons that are counted. All others are counted together, so that messages that contain values
# cannot grow the metadata without bound.
_REASONS = 50
_TIMESTAMP_TYPES = {0: "create_time", 1: "log_append_time"}


class FaultRows(Closable):
    """Applies the configured action to failed records.

    Attributes:
        seen: Number of failed records.
        stops: Whether a record failed whose action is to stop the run.
        handled: Source records that the stage set aside, or with an output that the destination rejected.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        self.seen = 0
        self.stops = False
        self.samples: list[FaultSample] = []
        self.reasons: dict[str, int] = {}
        self.dead_lettered: dict[int, int] = {}
        self.skipped: dict[int, int] = {}
        self.segments: tuple[Segment, ...] = ()
        self.handled: set[Rejected] = set()
        self._fetcher = RecordFetcher(spec.source_settings, spec.slice.group, spec.isolation)

    def is_over_limit(self, records: int) -> bool:
        """Whether more records were dead-lettered or skipped than the limit allows.

        Args:
            records: Number of records read.
        """
        lost = sum(self.dead_lettered.values()) + sum(self.skipped.values())
        return not self._spec.limit.allows(lost, records)

    def undecoded(self, note: Mapping[str, Any], key: bytes | None, value: bytes | None) -> Iterator[tuple[str, Row]]:
        """The dead letter of a record that does not decode, if the action is to write one.

        Args:
            note: The record's note from `kpipe_platform.spark.sink.rows.fault_rows`.
            key: The record's key.
            value: The record's value.
        """
        planned = self._spec.slice.ranges[note["src"]].range
        if note["component"] == Component.SOURCE.value:
            # Spark cannot represent the timestamp, so the original record is read again.
            original = self._fetched(note["src"], note["offset"])
            yield from self._take(note["src"], RowFault(_source_fault(original)), original)
            return
        record = KafkaRecord(
            topic=planned.topic,
            partition=planned.partition,
            offset=note["offset"],
            timestamp_ms=note["timestamp_ms"],
            timestamp_type=_TIMESTAMP_TYPES.get(note["timestamp_type"]),  # type: ignore[arg-type]
            key=key,
            value=value,
            headers=tuple((h["key"], _bytes(h["value"])) for h in note["headers"]),
        )
        yield from self._take(note["src"], RowFault(self._decode_fault(note, record)), record)

    def noted(self, note: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
        """The dead letter of a record that the stage set aside. Each source record has at most one."""
        src, offset = note["src"], note["offset"]
        if self._is_first(src, offset):
            row_fault = RowFault.from_json(note["note"])
            yield from self._take(src, row_fault, partial(self._fetched, src, offset), offset=offset)

    def rejected_output(self, row: Row, fault: Fault) -> Iterator[tuple[str, Row]]:
        """The dead letter for an output that the destination rejects.

        If its source is known, the source record is dead-lettered, only once even if it had several outputs. Otherwise
        the output record is dead-lettered, with the slice's range as its origin.
        """
        if row.src is None or row.src_offset is None:
            record = KafkaRecord(
                topic=None if row.dest is None else self._spec.output(row.dest).name,
                timestamp_ms=row.timestamp_ms,
                key=row.key,
                value=row.value,
                # A header without a name may be the reason for the rejection, and a dead letter cannot have one either.
                headers=tuple(header for header in row.headers if header[0] is not None),
            )
            yield from self._take(0, RowFault(fault), record)
        elif self._is_first(row.src, row.src_offset):
            src, offset = row.src, row.src_offset
            yield from self._take(src, RowFault(fault), partial(self._fetched, src, offset), offset=offset)

    def _is_first(self, src: int, offset: int) -> bool:
        if (src, offset) in self.handled:
            return False
        self.handled.add((src, offset))
        return True

    def _fetched(self, src: int, offset: int) -> KafkaRecord:
        planned = self._spec.slice.ranges[src].range
        return self._fetcher.get(planned.topic, planned.partition, offset)

    def _take(
        self,
        src: int,
        row_fault: RowFault,
        record: KafkaRecord | Callable[[], KafkaRecord],
        *,
        offset: int | None = None,
    ) -> Iterator[tuple[str, Row]]:
        spec, fault = self._spec, row_fault.fault
        action = row_fault.action or spec.policies.action(fault.component)
        self.seen += 1
        planned = spec.slice.ranges[src].range
        if isinstance(record, KafkaRecord):
            offset = record.offset
        sample = FaultSample(planned.topic, planned.partition, offset, self._shown(fault), action)
        if stops(action) and not self.stops:
            # The first record that stops the run decides its error, so it is the first sample.
            self.samples = [sample, *self.samples[: _SAMPLES - 1]]
            self.stops = True
        elif len(self.samples) < _SAMPLES:
            self.samples.append(sample)
        if stops(action):
            return
        self._count_reason(row_fault)
        if action is FaultAction.SKIP:
            self.skipped[src] = self.skipped.get(src, 0) + 1
            return
        self.dead_lettered[src] = self.dead_lettered.get(src, 0) + 1
        if spec.mode == "count":
            return
        context = spec.dead_letters[src]
        if context is None:
            msg = f"{planned}: a record failed, but there is no dead-letter destination"
            raise DeadLetterError(msg, fix="set KafkaIOManager(dead_letter=KafkaDeadLetterDestination(...))")
        if not isinstance(record, KafkaRecord):
            record = record()
        try:
            dead_letter = build_dead_letter(
                record,
                fault,
                context,
                int(time.time() * 1000),
                origin_range=None if record.offset is not None else planned,
                retries=row_fault.retries,
                segments=(*context.segments, *self.segments),
                rules=row_fault.rules,
            )
        except DeadLetterError as error:
            if stops(spec.policies.action(Component.DEAD_LETTER)):
                raise
            logger.warning("%s: skipping the record, because its dead letter cannot be built: %s", planned, error)
            self.dead_lettered[src] -= 1
            self.skipped[src] = self.skipped.get(src, 0) + 1
            return
        yield (
            dead_letter.topic,
            Row(dead_letter.key, dead_letter.value, list(dead_letter.headers), None, dead_letter.timestamp_ms),
        )

    def _count_reason(self, row_fault: RowFault) -> None:
        reason = f"rule {', '.join(row_fault.rules)}" if row_fault.rules else self._shown(row_fault.fault).message
        if reason not in self.reasons and len(self.reasons) >= _REASONS:
            reason = "others"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def _shown(self, fault: Fault) -> Fault:
        return without_message(fault) if self._spec.hide_messages else fault

    def _decode_fault(self, note: Mapping[str, Any], record: KafkaRecord) -> Fault:
        component = Component(note["component"])
        key_codec, value_codec = self._spec.codecs[note["src"]]
        if component is Component.DECODE_KEY:
            fault = key_codec.explain(key_codec.framed(record.key, record.headers, "key") or b"")
        else:
            fault = value_codec.explain(value_codec.framed(record.value, record.headers, "value") or b"")
        return Fault(component, fault.kind, "DecodeFault", fault.message, int(time.time() * 1000), field=fault.field)

    def close(self) -> None:
        """Close the client that reads original records."""
        self._fetcher.close()


def _source_fault(record: KafkaRecord) -> Fault:
    message = f"its timestamp {record.timestamp_ms} ms is outside the range that Spark can represent"
    return Fault(Component.SOURCE, "timestamp", "DecodeFault", message, int(time.time() * 1000))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
