"""Redrive over real topics: original bytes, exactly once, and never for ever."""

from __future__ import annotations

import hashlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

import kpipe_platform
from kpipe_platform.dead_letters.read.filters import make_filter
from kpipe_platform.dead_letters.redrive.decide import Action, Decision
from kpipe_platform.dead_letters.redrive.progress import Progress
from kpipe_platform.dead_letters.redrive.results import RedriveProgress
from kpipe_platform.dead_letters.redrive.stored_offset import StoredOffset, read_stored_offset
from kpipe_platform.dead_letters.redrive.transaction import RedriveTransaction
from kpipe_platform.errors import (
    BrokerUnavailableError,
    CommitUnknownError,
    ConfigError,
    FencedError,
    ForeignMemberError,
    NoStartOffsetError,
    OffsetConflictError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from kpipe_platform.kafka.admin.topics import TopicSpec, create_topic, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.transactions.base import CommitStep, OffsetTransaction
from kpipe_platform.policies.faults import Fault
from kpipe_platform.testing.plugin import Produce, TopicFactory
from kpipe_platform_tests.dead_letters.conftest import FAULT, KEEP, DeadLetters
from kpipe_platform_tests.lost_answers import lose_commit_answers
from kpipe_platform_tests.processes import wait_until

pytestmark = pytest.mark.broker

ATTEMPTS = "kpipe.redrive.attempts"
TIME = 1_700_000_000_000


def stored(letters: DeadLetters, partition: int = 0, group: str | None = None) -> StoredOffset | None:
    with Clients(letters.settings) as clients:
        return read_stored_offset(clients, group or f"{letters.topic}.redrive", letters.topic, partition)


def offset_of(letters: DeadLetters, partition: int = 0) -> int | None:
    found = stored(letters, partition)
    return None if found is None else found.offset


# ---------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("form", ["envelope", "raw"])
def test_the_record_comes_back_byte_for_byte(make_letters: Callable[..., DeadLetters], form: Any) -> None:
    letters = make_letters(partitions=3)
    headers = (("trace", b"\x80\xfe"), ("trace", b"second"), ("none", None), ("empty", b""), ("trace", b"third"))
    records = [
        KafkaRecord(letters.source, 2, 7, TIME + 1, "create_time", b"\xff", b"\xc3\x28 not UTF-8", headers),
        KafkaRecord(letters.source, 1, 8, TIME + 2, "create_time", b"k", None),
        KafkaRecord(letters.source, 2, 9, TIME + 3, "create_time", None, b""),
        KafkaRecord(letters.source, 0, 10, TIME + 4, "create_time", b"", b"v"),
    ]
    letters.add(records, form=form)
    result = letters.redrive()
    assert (result.total("sent"), result.sent_to) == (4, {letters.source: 4})
    found = {each.partition: [] for each in letters.sent()}
    for each in letters.sent():
        found[each.partition].append((each.key, each.value, each.timestamp_ms, each.headers))
    one = ((ATTEMPTS, b"1"),)
    assert found == {
        0: [(b"", b"v", TIME + 4, one)],
        1: [(b"k", None, TIME + 2, one)],
        2: [
            (b"\xff", b"\xc3\x28 not UTF-8", TIME + 1, (*headers, *one)),
            (None, b"", TIME + 3, one),
        ],
    }


def test_error_headers_of_others_are_stripped(letters: DeadLetters) -> None:
    spring = [
        ("mine", b"1"),
        ("kafka_dlt-original-topic", letters.source.encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", 0)),
        ("kafka_dlt-original-offset", struct.pack(">q", 3)),
        ("kafka_dlt-original-timestamp", struct.pack(">q", TIME)),
        ("kafka_dlt-exception-fqcn", b"a.Boom"),
        ("mine", b"2"),
    ]
    letters.put({"key": b"\xff", "value": b"\x00", "headers": spring})
    assert letters.redrive().total("sent") == 1
    (sent,) = letters.sent()
    assert (sent.key, sent.value, sent.timestamp_ms) == (b"\xff", b"\x00", TIME)
    assert sent.headers == (("mine", b"1"), ("mine", b"2"), (ATTEMPTS, b"1"))


def test_a_rejected_output_goes_to_its_own_topic(letters: DeadLetters) -> None:
    output = KafkaRecord(letters.source, None, None, TIME, None, b"k", b"out")
    letters.add([output])
    letters.redrive()
    assert letters.values() == [b"out"]


def test_to_another_topic_and_by_key(make_letters: Callable[..., DeadLetters], kafka_topic: TopicFactory) -> None:
    letters, other = make_letters(partitions=4), kafka_topic("other", partitions=2, config=KEEP)
    letters.add([letters.failed(n, partition=n) for n in range(4)])
    with pytest.raises(ConfigError, match=r"original partition .* is 2.*has 2 partition") as caught:
        letters.redrive(to_topic=other)
    assert "--partitioning by-key" in (caught.value.fix or "")
    assert letters.sent(other) == []
    assert letters.redrive(to_topic=other, partitioning="by_key").total("sent") == 4
    assert sorted(letters.values(other)) == [b"v0", b"v1", b"v2", b"v3"]
    assert letters.sent() == []


def test_plain_messages_go_where_they_are_told_only(letters: DeadLetters) -> None:
    letters.put({"key": b"k", "value": b"plain"})
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="is not a dead-letter topic") as caught:
            letters.redrive(dry_run=dry_run)
    assert "--to-topic" in (caught.value.fix or "")
    assert stored(letters) is None
    result = letters.redrive(filter=make_filter(places=["0@0"]))
    assert [(k.offset, k.reason) for k in result.kept] == [(0, "no_topic")]
    assert letters.redrive(to_topic=letters.source).total("sent") == 1
    assert letters.values() == [b"plain"]


# -------------------------------------------------------------------------------------------- progress


def test_a_second_redrive_has_nothing_to_do(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(5)])
    assert letters.redrive(batch_records=2).total("sent") == 5
    again = letters.redrive()
    assert (again.total("read"), again.total("sent")) == (0, 0)
    letters.add([letters.failed(5)])
    assert letters.redrive().total("sent") == 1
    assert letters.values() == [b"v%d" % n for n in range(6)]


def test_a_filter_leaves_the_others_where_a_later_redrive_finds_them(letters: DeadLetters) -> None:
    other = replace(FAULT, exception_type="shop.Other")
    for n in range(9):
        letters.add([letters.failed(n)], fault=other if n % 3 == 0 else FAULT)
    wanted = make_filter(exceptions=["DecodeFault"])
    first = letters.redrive(filter=wanted)
    assert (first.total("sent"), first.total("left_out")) == (6, 3)
    # The first one was left out, so the group's offset, which lag tools show, did not move.
    assert offset_of(letters) == 0
    assert letters.redrive(filter=wanted).total("done_before") == 6
    assert letters.redrive(filter=make_filter(places=["0@3"])).total("sent") == 1
    rest = letters.redrive()
    assert (rest.total("sent"), rest.total("done_before")) == (2, 7)
    assert sorted(letters.values()) == [b"v%d" % n for n in range(9)]
    assert offset_of(letters) == 9


def test_filters_by_origin(make_letters: Callable[..., DeadLetters]) -> None:
    letters = make_letters(partitions=2)
    letters.add([letters.failed(n, partition=n % 2) for n in range(6)])
    assert letters.redrive(filter=make_filter(topics=[letters.source], partitions=[1])).total("sent") == 3
    assert letters.redrive(filter=make_filter(topics=["nothing"])).total("sent") == 0
    assert sorted(letters.values()) == [b"v1", b"v3", b"v5"]


def test_markers_and_aborted_records_are_no_dead_letters(letters: DeadLetters, produce: Produce) -> None:
    for ending in ("commit", "abort", "commit"):
        message = {"value": b"x", "headers": {"__connect.errors.topic": letters.source}}
        produce(letters.topic, [message] * 3, transaction=ending)  # type: ignore[arg-type]
    result = letters.redrive(filter=make_filter(places=["0@1", "0@8", "0@9"]))
    assert (result.total("sent"), result.total("read")) == (3, 6)
    assert letters.redrive().total("sent") == 3
    assert offset_of(letters) == 12
    assert len(letters.sent()) == 6


def test_several_partitions_and_one_of_them(make_letters: Callable[..., DeadLetters]) -> None:
    letters = make_letters(dead_letter_partitions=3)
    for partition in range(3):
        letters.add([letters.failed(partition * 10 + n) for n in range(2)], partition=partition)
    assert letters.redrive(dead_letter_partitions=(1,)).total("sent") == 2
    assert [offset_of(letters, n) for n in range(3)] == [None, 2, None]
    result = letters.redrive()
    assert [(p.partition, p.sent) for p in result.partitions] == [(0, 2), (1, 0), (2, 2)]
    assert sorted(letters.values()) == [b"v0", b"v1", b"v10", b"v11", b"v20", b"v21"]
    with pytest.raises(TopicNotFoundError):
        letters.redrive(dead_letter_partitions=(7,))


def test_a_limit(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(7)])
    result = letters.redrive(limit=3, batch_records=2)
    assert (result.total("sent"), result.limited) == (3, True)
    assert letters.redrive(limit=10).limited is False
    assert letters.values() == [b"v%d" % n for n in range(7)]


def test_a_limit_is_not_used_up_by_what_stays(letters: DeadLetters) -> None:
    letters.put(*({"value": b"v", "headers": {"__connect.errors.topic": "nowhere"}} for _ in range(4)))
    letters.add([letters.failed(n) for n in range(3)])
    assert letters.redrive(limit=2).total("sent") == 2
    assert letters.values() == [b"v0", b"v1"]


def test_what_cannot_be_remembered_to_the_end_is_refused_before_anything_is_sent(
    letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kpipe_platform.dead_letters.redrive.progress.MAX_TEXT_BYTES", 90)
    monkeypatch.setattr("kpipe_platform.dead_letters.redrive.partition.ALWAYS_FIT", 10)
    letters.add([letters.failed(n) for n in range(90)])
    places = [
        f"0@{n}" for n in (1, 2, 5, 7, 11, 12, 18, 23, 24, 25, 31, 37, 38, 44, 51, 53, 59, 60, 66, 71, 80, 81, 88)
    ]
    with pytest.raises(ConfigError, match=r"takes .* bytes") as caught:
        letters.redrive(filter=make_filter(places=places), batch_records=2)
    assert "--to-topic" in (caught.value.fix or "")
    assert letters.sent() == []
    assert stored(letters) is None
    # What fits goes on.
    assert letters.redrive(filter=make_filter(places=places), batch_records=2, limit=2).total("sent") == 2
    assert letters.redrive(batch_records=50).total("sent") == 88


def test_a_rate(letters: DeadLetters) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    letters.add([letters.failed(n) for n in range(10)])
    letters.redrive(max_records_per_s=2, hooks={"clock": lambda: now[0], "sleep": sleep})
    assert slept == pytest.approx([1.0] * 4)
    assert len(letters.sent()) == 10


def test_progress_is_told(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(6)])
    told: list[RedriveProgress] = []
    letters.redrive(batch_records=2, hooks={"on_progress": told.append})
    assert [(p.position, p.end, p.moved) for p in told] == [(2, 6, 2), (4, 6, 4), (6, 6, 6), (6, 6, 6), (6, 6, 6)]


def test_a_dry_run_says_what_the_redrive_does_and_moves_nothing(letters: DeadLetters) -> None:
    letters.add([letters.failed(0), letters.failed(1, headers=((ATTEMPTS, b"3"),)), letters.failed(2)])
    letters.put({"value": b"plain"})
    dry: list[Decision] = []
    planned = letters.redrive(dry_run=True, create_parking_topic=True, hooks={"on_decision": dry.append})
    assert [d.action for d in dry] == [Action.SEND, Action.PARK, Action.SEND, Action.KEEP]
    assert [d.target for d in dry] == [f"{letters.source}[0]", f"{letters.parking}[0]", f"{letters.source}[0]", None]
    assert letters.sent() == []
    assert stored(letters) is None
    with Clients(letters.settings) as clients:
        assert letters.parking not in clients.admin().list_topics(timeout=10).topics
    done: list[Decision] = []
    result = letters.redrive(create_parking_topic=True, hooks={"on_decision": done.append})
    assert done == dry
    names = ("read", "sent", "parked", "kept", "left_out")
    assert [result.total(n) for n in names] == [planned.total(n) for n in names] == [4, 2, 1, 1, 0]
    assert [p.committed for p in result.partitions] == [p.committed for p in planned.partitions]


# ----------------------------------------------------------------------------------------- never for ever


def test_a_record_that_fails_again_and_again_is_parked(letters: DeadLetters) -> None:
    """Three times redriven, three times failed, as an asset would dead-letter it: then it is parked as it is."""
    headers = (("trace", b"\xff"),)
    record = letters.failed(0, key=b"\xff", value=b"\x80", headers=headers)
    letters.add([record])
    for attempt in range(1, 4):
        assert letters.redrive().total("sent") == 1
        sent = letters.sent()[-1]
        assert sent.headers == (*headers, (ATTEMPTS, b"%d" % attempt))
        assert (sent.key, sent.value, sent.timestamp_ms) == (b"\xff", b"\x80", record.timestamp_ms)
        again = KafkaRecord(
            sent.topic,
            sent.partition,
            sent.offset,
            sent.timestamp_ms,
            "create_time",
            sent.key,
            sent.value,
            sent.headers,
        )
        letters.add([again], form="raw" if attempt == 2 else "envelope")
    with pytest.raises(TopicNotFoundError, match="parked") as caught:
        letters.redrive()
    assert "--create-parking-topic" in (caught.value.fix or "")
    result = letters.redrive(create_parking_topic=True)
    assert (result.total("sent"), result.total("parked")) == (0, 1)
    (parked,) = letters.sent(letters.parking)
    last = letters.sent(letters.topic)[-1]
    assert (parked.key, parked.value, parked.headers) == (last.key, last.value, last.headers)
    assert parked.timestamp_ms == last.timestamp_ms
    assert len(letters.sent()) == 3
    assert letters.redrive().total("read") == 0


def test_dead_letters_that_come_meanwhile_wait_for_the_next_redrive(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(4)])

    def fail_at_once(decision: Decision) -> None:
        assert decision.record is not None
        letters.add([replace(decision.record, offset=99)])

    result = letters.redrive(batch_records=1, hooks={"on_decision": fail_at_once})
    assert (result.total("read"), result.total("sent")) == (4, 4)
    assert letters.redrive().total("sent") == 4


def test_others_attempts_count(letters: DeadLetters, kafka_topic: TopicFactory) -> None:
    parking = kafka_topic("parking", config=KEEP)
    spring = {
        "kafka_dlt-original-topic": letters.source,
        "retry_topic-attempts": struct.pack(">i", 3),
    }
    letters.put({"value": b"v", "headers": spring})
    assert letters.redrive(parking_topic=parking, dry_run=True).total("parked") == 1
    assert letters.redrive(parking_topic=parking, max_attempts=5).total("sent") == 1
    assert letters.sent()[0].headers == ((ATTEMPTS, b"4"),)


def test_a_dead_letter_of_the_dead_letter_topic_itself_stays(letters: DeadLetters) -> None:
    letters.put({"value": b"v", "headers": {"__connect.errors.topic": letters.topic}})
    result = letters.redrive()
    assert result.kept_by_reason == {"own_topic": 1}
    assert len(letters.sent(letters.topic)) == 1


# --------------------------------------------------------------------------------------------- payloads


def test_a_reference_takes_the_payload_from_the_source(letters: DeadLetters, produce: Produce) -> None:
    big = bytes(range(256)) * 40
    headers = (("trace", b"\xff"), (ATTEMPTS, b"1"))
    produce(letters.source, [b"before", {"key": b"\xff", "value": big, "headers": headers, "timestamp": TIME}])
    failed = KafkaRecord(letters.source, 0, 1, TIME, "create_time", b"\xff", big, headers)
    letters.add([failed], max_record_bytes=4_000)
    assert len(letters.sent(letters.topic)[0].value or b"") < 4_000
    assert letters.redrive().total("sent") == 1
    sent = letters.sent()[-1]
    assert (sent.key, hashlib.sha256(sent.value or b"").digest()) == (b"\xff", hashlib.sha256(big).digest())
    assert sent.headers == (("trace", b"\xff"), (ATTEMPTS, b"2"))
    assert sent.timestamp_ms == TIME


def test_a_reference_whose_payload_is_gone_or_another_stays(letters: DeadLetters, produce: Produce) -> None:
    produce(letters.source, [b"another"])
    for offset in (0, 7):
        letters.add([KafkaRecord(letters.source, 0, offset, TIME, None, b"k", b"x" * 9_000)], max_record_bytes=4_000)
    letters.add([letters.failed(3)])
    result = letters.redrive()
    assert [(k.offset, k.reason) for k in result.kept] == [(0, "payload_changed"), (1, "payload_gone")]
    assert letters.values() == [b"another", b"v3"]
    assert offset_of(letters) == 0
    assert letters.redrive().total("done_before") == 1


def test_redacted_payloads_stay_unless_told_otherwise(letters: DeadLetters, produce: Produce) -> None:
    produce(letters.source, [{"key": b"k", "value": b"secret", "headers": {"h": b"1"}, "timestamp": TIME}])
    failed = KafkaRecord(letters.source, 0, 0, TIME, "create_time", b"k", b"***")
    letters.add([failed])
    (plain,) = letters.sent(letters.topic)
    value = (plain.value or b"").replace(b'"schema":', b'"redacted":true,"schema":', 1)
    # The envelope is known by how it begins.
    value = (plain.value or b"")[:-1] + b',"redacted":true}'
    letters.put({"key": b"k", "value": value})
    with Clients(letters.settings) as clients:
        create_topic(clients, f"{letters.topic}.as-is", TopicSpec(config=KEEP))
    only = {"filter": make_filter(places=["0@1"])}
    assert letters.redrive(**only).kept_by_reason == {"redacted": 1}
    assert letters.redrive(**only, redacted="from_source").total("sent") == 1
    sent = letters.sent()[-1]
    assert (sent.value, sent.headers) == (b"secret", (("h", b"1"), (ATTEMPTS, b"1")))
    as_is = letters.redrive(**only, redacted="as_is", to_topic=f"{letters.topic}.as-is", group="as-is")
    assert as_is.total("sent") == 1
    assert letters.values(f"{letters.topic}.as-is") == [b"***"]


def hide(record: KafkaRecord, _: Fault) -> KafkaRecord:
    """A redaction hook."""
    return replace(record, value=b"***")


@pytest.mark.parametrize("families", [("connect",), ("spring",), ()])
@pytest.mark.parametrize("form", ["envelope", "raw"])
def test_what_a_hook_left_is_not_sent_for_the_original(
    letters: DeadLetters, produce: Produce, kafka_topic: TopicFactory, form: Any, families: Any
) -> None:
    produce(letters.source, [{"key": b"k", "value": b"secret", "headers": {"h": b"1"}, "timestamp": TIME}])
    failed = KafkaRecord(letters.source, 0, 0, TIME, "create_time", b"k", b"secret", (("h", b"1"),))
    letters.add([failed], form=form, header_families=families, redact=f"{__name__}:hide")
    assert letters.values(letters.topic) != [b"secret"]
    other = kafka_topic("as-is", config=KEEP)
    assert letters.redrive(to_topic=other).kept_by_reason == {"redacted": 1}
    assert letters.redrive(redacted="as_is", to_topic=other, group="as-is").total("sent") == 1
    assert [(each.value, each.headers) for each in letters.sent(other)] == [(b"***", (("h", b"1"), (ATTEMPTS, b"1")))]
    assert letters.redrive(redacted="from_source").total("sent") == 1
    sent = letters.sent()[-1]
    assert (sent.value, sent.headers) == (b"secret", (("h", b"1"), (ATTEMPTS, b"1")))


@pytest.mark.parametrize("form", ["envelope", "raw"])
def test_left_over_headers_of_another_tool_do_not_decide_where_a_record_goes(
    letters: DeadLetters, kafka_topic: TopicFactory, form: Any
) -> None:
    payments = kafka_topic("payments", config=KEEP)
    spring = (("kafka_dlt-original-topic", payments.encode()), ("kafka_dlt-original-partition", struct.pack(">i", 0)))
    letters.add([letters.failed(0, headers=spring)], form=form, header_families=("spring", "connect"))
    assert letters.redrive().total("sent") == 1
    assert letters.sent()[0].headers == (*spring, (ATTEMPTS, b"1"))
    assert letters.sent(payments) == []


def test_headers_that_name_several_topics_send_nothing_unless_told(
    letters: DeadLetters, kafka_topic: TopicFactory
) -> None:
    """Connect leaves a record's own headers before its own, so that those of another tool may say another topic."""
    payments = kafka_topic("payments", config=KEEP)
    letters.put(
        {
            "value": b"v",
            "headers": [
                ("kafka_dlt-original-topic", payments.encode()),
                ("__connect.errors.topic", letters.source.encode()),
                ("__connect.errors.partition", b"0"),
            ],
        }
    )
    (stays,) = letters.redrive().kept
    assert (stays.reason, payments in stays.detail, "--to-topic" in stays.detail) == ("several_topics", True, True)
    assert letters.redrive(to_topic=letters.source).total("sent") == 1
    assert (letters.values(), letters.values(payments)) == ([b"v"], [])


# ------------------------------------------------------------------------------------ what topics refuse


def test_what_the_brokers_refuse_stays_alone(make_letters: Callable[..., DeadLetters]) -> None:
    letters = make_letters(config={"max.message.bytes": "3000"})
    incompressible = os.urandom(6_000)
    for n in range(9):
        letters.add([letters.failed(n, value=incompressible if n == 4 else b"v%d" % n)])
    result = letters.redrive()
    assert [(k.offset, k.reason) for k in result.kept] == [(4, "refused")]
    assert letters.values() == [b"v%d" % n for n in range(9) if n != 4]
    assert offset_of(letters) == 4
    again = letters.redrive()
    assert (again.total("sent"), again.total("kept"), again.total("done_before")) == (0, 1, 4)


def test_many_small_records_for_a_topic_with_a_small_limit(make_letters: Callable[..., DeadLetters]) -> None:
    letters = make_letters(config={"max.message.bytes": "1000"})
    values = [os.urandom(300) for _ in range(40)]
    letters.add([letters.failed(n, value=value) for n, value in enumerate(values)])
    assert letters.redrive().total("sent") == 40
    assert letters.values() == values


def test_what_can_be_known_before_is_not_tried(make_letters: Callable[..., DeadLetters]) -> None:
    letters = make_letters(config={"cleanup.policy": "compact", "message.timestamp.after.max.ms": "3600000"})
    letters.add(
        [
            letters.failed(0, key=None),
            replace(letters.failed(1), timestamp_ms=int(time.time() * 1000) + 86_400_000),
            replace(letters.failed(2), timestamp_ms=0),
            letters.failed(3),
        ]
    )
    result = letters.redrive()
    assert [(k.offset, k.reason) for k in result.kept] == [(0, "null_key"), (1, "timestamp"), (2, "timestamp")]
    assert letters.values() == [b"v3"]


def test_records_that_the_brokers_would_delete_again_are_told(make_letters: Callable[..., DeadLetters]) -> None:
    letters = make_letters(config={"retention.ms": "86400000"})
    letters.add([letters.failed(0), replace(letters.failed(1), timestamp_ms=int(time.time() * 1000))])
    decisions: list[Decision] = []
    result = letters.redrive(dry_run=True, hooks={"on_decision": decisions.append})
    assert (result.total("sent"), result.short_lived) == (2, 1)
    assert "retention.ms" in (decisions[0].detail or "")
    assert decisions[1].detail is None
    compacted = make_letters(config={"retention.ms": "1000", "cleanup.policy": "compact"})
    compacted.add([compacted.failed(0)])
    assert compacted.redrive().short_lived == 0


# ---------------------------------------------------------------------------------------- exactly once


@pytest.mark.parametrize("place", ["hang_before_begin", "hang_before_offsets", "hang_before_commit"])
def test_killed_in_the_middle_and_run_again(letters: DeadLetters, tmp_path: Path, place: str) -> None:
    letters.add([letters.failed(n) for n in range(40)])
    root = Path(kpipe_platform.__file__).parent.parent
    reached = tmp_path / "reached"
    with (tmp_path / "stderr").open("wb") as stderr:
        child = subprocess.Popen(
            [
                *(sys.executable, "-c", "from kpipe_platform.cli.main import main; main()"),
                *("dlq", "redrive", letters.topic, "--batch", "10"),
                *("--bootstrap-servers", letters.settings.bootstrap_servers),
            ],
            cwd=root,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(root / "kpipe_platform_tests" / "faultpoints"), str(root)]),
                "KPIPE_FAULT": place,
                "KPIPE_FAULT_AFTER": "2",
                "KPIPE_FAULT_FILE": str(reached),
            },
        )
    try:
        deadline = time.monotonic() + 60
        while not reached.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert reached.exists(), (tmp_path / "stderr").read_text()[-3000:]
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(30)
    # A transaction that was left open holds readers back for good, and a commit shows a moment after its answer.
    wait_until(lambda: len(letters.values(settle_s=0)) >= 20, "the batches before it are there")
    assert letters.values(settle_s=0) == [b"v%d" % n for n in range(20)]
    result = letters.redrive(batch_records=10)
    assert (result.total("sent"), result.partitions[0].start) == (20, 20)
    assert letters.values() == [b"v%d" % n for n in range(40)]
    assert letters.redrive().total("sent") == 0


def test_a_dry_run_while_a_killed_redrive_holds_the_offset_says_so(letters: DeadLetters) -> None:
    letters.add([letters.failed(0)])
    group = f"{letters.topic}.redrive"
    with Clients(letters.settings) as clients:
        killed = Producer({**letters.settings.for_librdkafka(), "transactional.id": f"{group}.{letters.topic}.0"})
        killed.init_transactions(10)
        killed.begin_transaction()
        moved = [TopicPartition(letters.topic, 0, 1)]
        killed.send_offsets_to_transaction(moved, clients.consumer(group).consumer_group_metadata(), 10)
        short = replace(letters, settings=ConnectionSettings(letters.settings.bootstrap_servers, request_timeout_s=1.5))
        with pytest.raises(BrokerUnavailableError):
            short.redrive(dry_run=True)
        assert letters.redrive().total("sent") == 1
        del killed
    assert letters.values() == [b"v0"]


def test_a_newer_redrive_takes_over(letters: DeadLetters) -> None:
    """The second one begins while the first one is between two batches; together they send everything once."""
    letters.add([letters.failed(n) for n in range(6)])
    inner: list[int] = []

    def second(_: float) -> None:
        if not inner:
            inner.append(letters.redrive().total("sent"))

    with pytest.raises(OffsetConflictError):
        letters.redrive(max_records_per_s=2, hooks={"sleep": second, "clock": lambda: 0.0})
    assert inner == [4]
    assert letters.values() == [b"v%d" % n for n in range(6)]


def test_a_newer_redrive_that_has_sent_nothing_yet_fences_too(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(4)])
    with Clients(letters.settings) as clients:
        newer = RedriveTransaction(clients, f"{letters.topic}.redrive", letters.topic, 0, timeout_s=30)
        opened: list[Any] = []

        def take_over(_: float) -> None:
            if not opened:
                opened.append(newer.open())

        with newer, pytest.raises(FencedError, match="a newer redrive took over"):
            letters.redrive(max_records_per_s=2, hooks={"sleep": take_over, "clock": lambda: 0.0})
    assert letters.values() == [b"v0", b"v1"]
    assert letters.redrive().total("sent") == 2


def test_commits_whose_answers_are_lost_are_counted(letters: DeadLetters, monkeypatch: pytest.MonkeyPatch) -> None:
    letters.add([letters.failed(n) for n in range(6)])
    lost = lose_commit_answers(monkeypatch)
    assert letters.redrive(batch_records=2).total("sent") == 6
    # Three batches, and the end.
    assert len(lost) == 4
    assert letters.values() == [b"v%d" % n for n in range(6)]


def test_a_commit_that_did_not_take_place_is_no_success(letters: DeadLetters, monkeypatch: pytest.MonkeyPatch) -> None:
    letters.add([letters.failed(n) for n in range(2)])
    request = OffsetTransaction.request

    def unsent(self: OffsetTransaction, step: CommitStep, call: Callable[[], Any]) -> None:
        if step is CommitStep.COMMIT:
            raise BrokerUnavailableError(f"no answer to: {step.value}")
        request(self, step, call)

    with monkeypatch.context() as patched:
        patched.setattr(OffsetTransaction, "request", unsent)
        with pytest.raises(CommitUnknownError):
            letters.redrive()
    assert letters.redrive().total("sent") == 2
    assert letters.values() == [b"v0", b"v1"]


def test_two_redrives_at_once(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(300)])
    together = threading.Barrier(2, timeout=30)
    outcomes: list[Any] = []

    def run() -> None:
        together.wait()
        try:
            outcomes.append(letters.redrive(batch_records=20).total("sent"))
        except OffsetConflictError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(outcomes) == 2
    # Whoever lost, what is left is sent by the next redrive, and nothing twice.
    letters.redrive()
    assert letters.values() == [b"v%d" % n for n in range(300)]


def test_an_offset_moved_by_hand_is_obeyed(letters: DeadLetters) -> None:
    from typer.testing import CliRunner

    from kpipe_platform.cli.main import app

    letters.add([letters.failed(n) for n in range(4)])
    letters.redrive()
    servers = {"KAFKA_BOOTSTRAP_SERVERS": letters.settings.bootstrap_servers}
    words = ["offsets", "set", f"{letters.topic}.redrive", letters.topic, "--to", "2", "--yes"]
    assert CliRunner().invoke(app, words, env=servers).exit_code == 0
    assert letters.redrive().total("sent") == 2
    assert letters.values() == [b"v0", b"v1", b"v2", b"v3", b"v2", b"v3"]


# ------------------------------------------------------------------------------------------- refusals


def test_a_group_without_an_offset_may_be_refused(letters: DeadLetters) -> None:
    letters.add([letters.failed(0)])
    with pytest.raises(NoStartOffsetError, match="kpipe offsets set"):
        letters.redrive(start="error")
    assert letters.redrive().partitions[0].is_new
    letters.add([letters.failed(1)])
    again = letters.redrive(start="error")
    assert (again.total("sent"), again.partitions[0].is_new) == (1, False)


def test_an_idle_redrive_renews_the_groups_offset(letters: DeadLetters) -> None:
    """The brokers forget the offset of a group that commits nothing for long."""
    letters.redrive()
    assert offset_of(letters) == 0


def test_an_offset_of_an_earlier_topic_of_that_name(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(3)])
    with Clients(letters.settings) as clients:
        group = f"{letters.topic}.redrive"
        with RedriveTransaction(clients, group, letters.topic, 0, timeout_s=30) as transaction:
            transaction.open()
            transaction.send([], 1, Progress(1).to_text("the-id-of-another-topic"))
    for dry_run in (True, False):
        with pytest.raises(TopicRecreatedError, match="kpipe offsets set"):
            letters.redrive(dry_run=dry_run)
    assert letters.sent() == []


def test_an_offset_past_an_open_transaction_stays(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(3)])
    writer = Producer({**letters.settings.for_librdkafka(), "transactional.id": f"writer-of-{letters.topic}"})
    writer.init_transactions(10)
    writer.begin_transaction()
    for _ in range(3):
        writer.produce(letters.topic, b"open", partition=0)
    writer.flush(10)
    with Clients(letters.settings) as clients:
        group = f"{letters.topic}.redrive"
        with RedriveTransaction(clients, group, letters.topic, 0, timeout_s=30) as transaction:
            transaction.open()
            topic_id = describe_topics(clients, [letters.topic])[letters.topic].topic_id
            transaction.send([], 5, Progress(5).to_text(topic_id))
    for dry_run in (True, False):
        assert letters.redrive(dry_run=dry_run).total("read") == 0
    assert offset_of(letters) == 5
    writer.abort_transaction(10)
    assert letters.sent() == []


def test_dead_letters_that_retention_took(letters: DeadLetters) -> None:
    letters.add([letters.failed(n) for n in range(6)])
    letters.redrive(filter=make_filter(places=["0@1"]))
    with Clients(letters.settings) as clients:
        (deleted,) = clients.admin().delete_records([TopicPartition(letters.topic, 0, 3)]).values()
        deleted.result(10)
    result = letters.redrive()
    assert (result.total("expired"), result.total("sent")) == (2, 3)
    assert sorted(letters.values()) == [b"v1", b"v3", b"v4", b"v5"]


def test_a_foreign_member_of_the_group(letters: DeadLetters) -> None:
    from confluent_kafka import Consumer

    group = {"group.id": f"{letters.topic}.redrive", "client.id": "rival"}
    rival = Consumer({**letters.settings.for_librdkafka(), **group})
    rival.subscribe([letters.topic])
    deadline = time.monotonic() + 30
    while not rival.assignment() and time.monotonic() < deadline:
        rival.poll(0.1)
    with pytest.raises(ForeignMemberError, match="rival"):
        letters.redrive()
    rival.close()


def test_a_dead_letter_whose_topic_or_partition_is_gone_stays_and_stops_no_other(letters: DeadLetters) -> None:
    letters.add(
        [
            KafkaRecord("nowhere", 0, 1, TIME, None, b"k", b"v"),
            letters.failed(1),
            letters.failed(2, partition=7),
            KafkaRecord("no topic!", 0, 1, TIME, None, b"k", b"v"),
            KafkaRecord("nowhere", 0, 2, TIME, None, b"k", b"v" * 9_000),
        ],
        max_record_bytes=4_000,
    )
    letters.put({"value": b"v", "headers": {"__connect.errors.topic": ""}})
    letters.add([letters.failed(3)])
    for dry_run in (True, False):
        result = letters.redrive(dry_run=dry_run)
        assert [(kept.offset, kept.reason) for kept in result.kept] == [
            (0, "topic_gone"),
            (2, "partition_gone"),
            (3, "topic_gone"),
            (4, "payload_gone"),
            (5, "topic_gone"),
        ]
        assert result.total("sent") == 2
    assert "--to-topic" in result.kept[0].detail
    assert "--partitioning by-key" in result.kept[1].detail
    assert letters.values() == [b"v1", b"v3"]


def test_topics_that_are_not_there(letters: DeadLetters) -> None:
    letters.add([letters.failed(0)])
    with pytest.raises(TopicNotFoundError, match="nowhere") as caught:
        letters.redrive(to_topic="nowhere")
    assert "--to-topic" in (caught.value.fix or "")
    with pytest.raises(TopicNotFoundError, match="no-such"):
        replace(letters, topic="no-such.dlq").redrive()


def test_no_broker() -> None:
    from kpipe_platform.dead_letters.redrive.options import RedriveOptions
    from kpipe_platform.dead_letters.redrive.redrive import redrive

    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:9"):
        redrive(ConnectionSettings("127.0.0.1:9", request_timeout_s=1.0), RedriveOptions("orders.dlq"))
