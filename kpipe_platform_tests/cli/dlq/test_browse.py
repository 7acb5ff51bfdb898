"""`kpipe dlq` as its user sees it, against a real broker."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kpipe_platform.cli.dlq import output as dlq_output
from kpipe_platform.cli.dlq.output import as_text, moving_bar
from kpipe_platform.cli.main import app
from kpipe_platform.dead_letters import DeadLetterContext, build_dead_letter
from kpipe_platform.dead_letters.redrive.results import RedriveProgress
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory

pytestmark = pytest.mark.broker

TIME = 1_767_225_600_000
FAULT = Fault(Component.DECODE_VALUE, "wrong_type", "shop.DecodeFault", 'field "quantity":\nexpected int', TIME)

Kpipe = Callable[..., Result]


@pytest.fixture
def kpipe(kafka_broker: EmbeddedBroker) -> Kpipe:
    """Runs a command in this process, as one line."""
    runner = CliRunner()

    def run(line: str) -> Result:
        return runner.invoke(app, shlex.split(line), env={"KAFKA_BOOTSTRAP_SERVERS": kafka_broker.bootstrap_servers})

    return run


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), "a traceback instead of a message"
    for part in parts:
        assert part in result.stderr


@pytest.fixture
def source(kafka_topic: TopicFactory) -> str:
    return kafka_topic("orders", partitions=2, config={"retention.ms": "-1"})


@pytest.fixture
def dlq(kafka_topic: TopicFactory, produce: Produce, source: str) -> str:
    """Three dead letters: an envelope, Spring's, and one that says nothing."""
    topic = kafka_topic("orders.dlq", config={"retention.ms": "-1"})
    record = KafkaRecord(source, 1, 42, TIME, "create_time", b"\xff", b'{"quantity":"three"}', (("trace", b"7f"),))
    built = build_dead_letter(record, FAULT, DeadLetterContext(topic, "priced", "run-1", "shop.priced"), TIME + 60_000)
    spring = {"kafka_dlt-original-topic": source, "kafka_dlt-exception-fqcn": "a.Boom", "kpipe.redrive.attempts": "3"}
    produce(
        topic,
        [
            {"key": built.key, "value": built.value, "headers": built.headers, "timestamp": TIME + 60_000},
            {"key": b"k", "value": b"\x00\x80", "headers": spring, "timestamp": TIME},
            {"value": b"plain", "timestamp": TIME},
        ],
    )
    return topic


def test_list(kpipe: Kpipe, dlq: str, source: str) -> None:
    lines = succeeded(kpipe(f"dlq list {dlq}")).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["at", "time", "original", "exception", "message", "attempts", "state"],
        [
            *("0@0", "2026-01-01T00:01:00.000Z", f"{source}/1@42", "shop.DecodeFault"),
            *("field", '"quantity":', "expected", "int", "0", "waiting"),
        ],
        ["0@1", "2026-01-01T00:00:00.000Z", f"{source}/?@?", "a.Boom", "-", "3", "waiting"],
        ["0@2", "2026-01-01T00:00:00.000Z", "-", "-", "-", "0", "waiting"],
    ]


def test_list_by_a_filter_and_as_json(kpipe: Kpipe, dlq: str, source: str) -> None:
    result = succeeded(kpipe(f"dlq list {dlq} --exception DecodeFault --asset 'pri*' --partition 1 --json"))
    assert json.loads(result.stdout) == [
        {
            "partition": 0,
            "offset": 0,
            "redriven": False,
            "time": "2026-01-01T00:01:00.000Z",
            "family": "kpipe",
            "original": {"topic": source, "partition": 1, "offset": 42, "timestamp_ms": TIME},
            "exception": "shop.DecodeFault",
            "cause": None,
            "message": 'field "quantity":\nexpected int',
            "component": "decode_value",
            "kind": "wrong_type",
            "rules": [],
            "asset": "priced",
            "attempts": 0,
            "redacted": False,
            "problem": None,
        }
    ]
    nothing = succeeded(kpipe(f"dlq list {dlq} --since 2099-01-01"))
    assert (nothing.stdout, nothing.stderr) == ("", "No dead letters match.\n")
    limited = succeeded(kpipe(f"dlq list {dlq} --limit 1"))
    assert len(limited.stdout.splitlines()) == 2
    assert "More than 1" in limited.stderr


def test_show(kpipe: Kpipe, dlq: str, source: str) -> None:
    text = succeeded(kpipe(f"dlq show {dlq} 0 0")).stdout
    for line in (
        f"dead letter         {dlq}[0]@0",
        f"original            {source}/1@42",
        "original timestamp  2026-01-01T00:00:00.000Z",
        "exception           shop.DecodeFault",
        "asset               priced",
        "header trace: 7f",
        "key: 0xff",
        'value: {"quantity":"three"}',
    ):
        assert line in text.splitlines()
    assert "value: 0x0080" in succeeded(kpipe(f"dlq show {dlq} 0 1")).stdout
    shown = json.loads(succeeded(kpipe(f"dlq show {dlq} 0 0 --json")).stdout)
    assert base64.b64decode(shown["record"]["key_base64"]) == b"\xff"
    assert shown["record"]["headers"] == [{"key": "trace", "value_base64": base64.b64encode(b"7f").decode()}]
    refused(kpipe(f"dlq show {dlq} 0 99"), "no dead letter at offset 99", f"kpipe dlq list {dlq}")
    refused(kpipe(f"dlq show {dlq} 5 0"), "partition 5")


def test_show_raw_writes_the_bytes_and_nothing_else(kpipe: Kpipe, dlq: str, kafka_topic: TopicFactory) -> None:
    assert succeeded(kpipe(f"dlq show {dlq} 0 1 --raw")).stdout_bytes == b"\x00\x80"
    assert succeeded(kpipe(f"dlq show {dlq} 0 0 --raw")).stdout_bytes == b'{"quantity":"three"}'


def test_show_of_a_payload_that_is_gone(
    kpipe: Kpipe, dlq: str, source: str, produce: Produce, consume: Consume
) -> None:
    record = KafkaRecord(source, 0, 9, TIME, "create_time", b"k", b"x" * 9_000)
    context = DeadLetterContext(dlq, "priced", "run-1", "shop.priced", max_record_bytes=4_000)
    built = build_dead_letter(record, FAULT, context, TIME)
    produce(dlq, [{"key": built.key, "value": built.value, "headers": built.headers}])
    shown = succeeded(kpipe(f"dlq show {dlq} 0 3"))
    assert "is not there any more" in shown.stderr
    assert "value:" not in shown.stdout
    refused(kpipe(f"dlq show {dlq} 0 3 --raw"), "is not available")


def test_stats(kpipe: Kpipe, dlq: str, source: str) -> None:
    found = json.loads(succeeded(kpipe(f"dlq stats {dlq} --json")).stdout)
    assert (found["topic"], found["total"], found["waiting"]) == (dlq, 3, 3)
    assert found["by_reason"] == {"shop.DecodeFault": 1, "a.Boom": 1, "unknown": 1}
    assert found["by_topic"] == {source: 2, "unknown": 1}
    assert found["by_partition"] == {f"{source}[1]": 1, f"{source}[?]": 1, "unknown[?]": 1}
    assert found["by_asset"] == {"priced": 1, "unknown": 2}
    assert sum(found["by_age"].values()) == 3
    assert found["by_family"] == {"kpipe": 1, "spring": 1, "unknown": 1}
    text = succeeded(kpipe(f"dlq stats {dlq} --topic '{source}'")).stdout
    assert text.startswith("2 dead letter(s), 2 waiting to be redriven\n")
    assert "shop.DecodeFault" in text


def test_dry_run_then_redrive_then_list(kpipe: Kpipe, dlq: str, source: str, consume: Consume) -> None:
    dry = succeeded(kpipe(f"dlq redrive {dlq} --dry-run --create-parking-topic"))
    rows = [line.split() for line in dry.stdout.splitlines()]
    assert rows[0] == ["at", "action", "to", "attempt", "reason"]
    assert rows[1] == ["0@0", "send", f"{source}[1]", "1", "-"]
    assert rows[2] == ["0@1", "park", f"{dlq}.parking[0]", "3", "-"]
    assert rows[3][:3] == ["0@2", "keep", "-"]
    assert "Dry run: nothing was sent or parked." in dry.stderr
    assert consume(source) == []

    done = succeeded(kpipe(f"dlq redrive {dlq} --create-parking-topic"))
    head, row = (line.split("  ") for line in done.stdout.splitlines())
    assert [cell.strip() for cell in head if cell] == [
        *("partition", "from", "to", "committed", "read", "sent", "parked", "kept", "left out", "done before")
    ]
    assert [int(cell) for cell in row if cell] == [0, 0, 3, 2, 3, 1, 1, 1, 0, 0]
    assert f"1 record(s) sent to {source}." in done.stderr
    assert f"1 dead letter(s) parked in {dlq}.parking." in done.stderr
    assert "Kept 0@2 (no_topic)" in done.stderr
    assert "had no offset" in done.stderr
    (sent,) = consume(source)
    assert (sent.partition, sent.key, sent.timestamp_ms) == (1, b"\xff", TIME)

    states = [line.split()[-1] for line in succeeded(kpipe(f"dlq list {dlq}")).stdout.splitlines()[1:]]
    assert states == ["redriven", "redriven", "waiting"]
    assert len(succeeded(kpipe(f"dlq list {dlq} --waiting")).stdout.splitlines()) == 2
    found = json.loads(succeeded(kpipe(f"dlq redrive {dlq} --json --rate 100")).stdout)
    assert (found["sent"], found["kept"], found["kept_by_reason"]) == (0, 1, {"no_topic": 1})
    assert found["partitions"][0]["is_new"] is False
    shown = succeeded(kpipe(f"offsets show {dlq}.redrive {dlq} --json"))
    assert json.loads(shown.stdout)["partitions"][0]["lag"] == 1


def test_dry_run_as_json(kpipe: Kpipe, dlq: str, source: str) -> None:
    found = json.loads(succeeded(kpipe(f"dlq redrive {dlq} --dry-run --json --at 0@0")).stdout)
    assert (found["dry_run"], found["sent"], found["left_out"]) == (True, 1, 2)
    assert found["decisions"] == [
        {
            "partition": 0,
            "offset": 0,
            "action": "send",
            "to_topic": source,
            "to_partition": 1,
            "attempts": 1,
            "reason": None,
            "detail": None,
        }
    ]


def test_a_topic_of_no_known_family_is_shown_and_not_redriven(
    kpipe: Kpipe, kafka_topic: TopicFactory, produce: Produce
) -> None:
    flights = kafka_topic("flights", partitions=2)
    record = {"value": b'{"flight": 1}', "headers": {"x-original-topic": "departures"}}
    produce(flights, [{**record, "partition": n % 2} for n in range(10)])
    group = "kpipe_platform.dead_letter_families"
    for command, lines in (("list", 11), ("list --at 1@2", 2)):
        result = succeeded(kpipe(f"dlq {command} {flights}"))
        assert (len(result.stdout.splitlines()), group in result.stderr) == (lines, True)
    shown = succeeded(kpipe(f"dlq show {flights} 1 2"))
    assert "header x-original-topic: departures" in shown.stdout
    assert group in shown.stderr
    assert "10 dead letter(s)" in succeeded(kpipe(f"dlq stats {flights}")).stdout
    for command in ("redrive", "redrive --dry-run --limit 3"):
        parts = f"topic '{flights}' is no dead-letter topic", "none of the 10 records", group, "--to-topic"
        refused(kpipe(f"dlq {command} {flights}"), *parts)
    assert succeeded(kpipe(f"dlq list {kafka_topic('empty.dlq')}")).stderr == "No dead letters match.\n"


def test_a_dry_run_lists_no_more_than_its_limit(kpipe: Kpipe, dlq: str, source: str, produce: Produce) -> None:
    produce(dlq, [b"plain"] * 20)
    produce(dlq, [{"value": b"v", "headers": {"__connect.errors.topic": source}}] * 3)
    dry = f"dlq redrive {dlq} --dry-run --create-parking-topic --limit"
    rows = [line.split()[:2] for line in succeeded(kpipe(f"{dry} 3")).stdout.splitlines()[1:4]]
    assert rows == [["0@0", "send"], ["0@1", "park"], ["0@23", "send"]]
    shown = json.loads(succeeded(kpipe(f"{dry} 9 --json")).stdout)
    assert [each["offset"] for each in shown["decisions"]] == [0, 1, 2, 3, 4, 5, 23, 24, 25]
    assert (shown["sent"], shown["parked"], shown["kept"]) == (4, 1, 21)


def test_redrive_says_what_is_wrong(kpipe: Kpipe, dlq: str) -> None:
    refused(kpipe(f"dlq redrive {dlq}"), "to be parked", "--create-parking-topic")
    refused(kpipe(f"dlq redrive {dlq} --since nonsense"), "not a valid time")
    refused(kpipe(f"dlq redrive {dlq} --at 7"), "0@42")
    refused(kpipe(f"dlq redrive {dlq} --to-topic {dlq}"), "for ever")
    refused(kpipe(f"dlq redrive {dlq} --rate 0"), "sends nothing")
    refused(kpipe(f"dlq redrive {dlq} --start error"), "kpipe offsets set")
    refused(kpipe("dlq redrive no-such.dlq"), "no-such.dlq", "does not exist")


def test_another_group_knows_nothing_of_the_first(kpipe: Kpipe, dlq: str, source: str, consume: Consume) -> None:
    for _ in range(2):
        succeeded(kpipe(f"dlq redrive {dlq} --group again --at 0@0"))
    succeeded(kpipe(f"dlq redrive {dlq} --at 0@0"))
    assert len(consume(source)) == 2


def test_values_for_a_person() -> None:
    values = {None: None, b"": "", "Zürich\n".encode(): "Zürich\n", b"\xff": "0xff", b"a\x1b[31m": "0x611b5b33316d"}
    assert {data: as_text(data) for data in values} == values


def test_the_bar_is_on_standard_error_and_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    event = RedriveProgress(partition=0, start=0, position=5, end=10, moved=5)
    with moving_bar("orders.dlq") as show:
        show(event)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(dlq_output.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with moving_bar("orders.dlq") as show:
        show(event)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "orders.dlq/0" in captured.err
    assert "5/10" in captured.err


def test_help_needs_neither_dagster_nor_pyspark() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from kpipe_platform.cli.main import app\n"
        "for word in ('list', 'show', 'stats', 'redrive'):\n"
        "    assert CliRunner().invoke(app, ['dlq', word, '--help']).exit_code == 0\n"
        "sys.exit(', '.join(sorted({'dagster', 'pyspark'} & set(sys.modules))) or 0)"
    )
    root = Path(__file__).parents[3]
    answer: Any = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
