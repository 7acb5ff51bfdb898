"""What a run shows of the records that failed where a redaction hook is set."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform.codecs import JsonCodec, RawCodec
from kpipe_platform.dead_letters import DeadLetterContext
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.spark.sink.errors import stopped_by_faults
from kpipe_platform.spark.sink.spec import Outcome, OutputTopic, WriterSpec
from kpipe_platform.spark.sink.task.faults import FaultRows
from kpipe_platform.spark.sink.task.outputs import Row

SECRET = "ann@example.org"


def hide(record: KafkaRecord, fault: Fault) -> KafkaRecord:
    """A redaction hook."""
    return KafkaRecord(record.topic, record.partition, record.offset)


def spec_of(action: FaultAction, **changes: Any) -> WriterSpec:
    settings = ConnectionSettings(bootstrap_servers="127.0.0.1:9")
    planned = PlannedRange(OffsetRange("people", 0, 0, 5), "id", 0, 5, None)
    context = DeadLetterContext("people.dlq", asset="clean", run_id="run", group="g", redact=f"{__name__}:hide")
    fields: dict[str, Any] = {
        "settings": settings,
        "source_settings": settings,
        "slice": Slice("g", "run", "abc", (planned,)),
        "mode": "parallel",
        "outputs": (OutputTopic("clean", TopicLimits()),),
        "dead_letters": (context,),
        "policies": FaultPolicies(action),
        "codecs": ((RawCodec(), JsonCodec("mail INT")),),
        "isolation": "read_committed",
    }
    return WriterSpec(**{**fields, **changes})


@pytest.mark.parametrize("action", list(FaultAction))
@pytest.mark.parametrize("hidden", [True, False])
def test_messages_that_quote_a_record_are_hidden_where_a_hook_is_set(action: FaultAction, hidden: bool) -> None:
    note = {"src": 0, "offset": 1, "timestamp_ms": 5, "timestamp_type": 0, "headers": [], "component": "decode_value"}
    refused = Fault(Component.DESTINATION, "refused", "RecordRejected", f"bad {SECRET}", 0, f"raise ({SECRET})", SECRET)
    spec = spec_of(action, hide_messages=hidden)
    with FaultRows(spec) as faults:
        letters = list(faults.undecoded(note, None, b'{"mail": "%s"}' % SECRET.encode()))
        letters += list(faults.rejected_output(Row(None, b"v", [], None, 5), refused))
        outcome = Outcome("faults", faults=faults.seen, samples=faults.samples, reasons=faults.reasons)
    assert len(letters) == (2 if action is FaultAction.DEAD_LETTER else 0)
    error = stopped_by_faults(spec, outcome)
    told = f"{outcome.samples} {outcome.reasons} {error} {vars(error)}"
    assert (SECRET in told) is not hidden
    assert "wrong_type" in told
