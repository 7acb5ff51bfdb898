"""Kafka's own performance tools write and read what they are told to, and what they print is read with care."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.checks import drawn_problems
from benchmarks.orders import VALUE_BYTES, Orders
from benchmarks.perf_output import Fetched, Sent, ToolError, parse_fetched, parse_sent
from benchmarks.perf_tools import PRODUCER, ConsumerTool, ProducerTool, run_tool
from benchmarks.topics import Sources
from kpipe_platform.codecs import RawCodec
from kpipe_platform.deadletter import DeadLetterContext
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.settings import ConnectionSettings
from kpipe_platform.kafka.slices import PlannedRange, Slice
from kpipe_platform.kafka.topics import TopicLimits
from kpipe_platform.policies.components import FaultPolicies
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.resources.destination import KafkaDestination
from kpipe_platform.spark.writer_spec import WriterSpec
from kpipe_platform.spark.writer_task import WriterTask
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

# As the tools of Kafka 4.2.0 print it.
SENT = """\
Reading payloads from: /tmp/kpipe-bench-1/payloads
Number of records read: 100000
Warmup first 1000000 records. Steady state results will print after the complete test summary.
1412345 records sent, 282469.0 records/sec (37.98 MB/sec), 14.2 ms avg latency, 225.0 ms max latency.
2000000 records sent, 443557.329785 records/sec (59.64 MB/sec), 34.07 ms avg latency, 225.00 ms max latency, 19 ms \
50th, 108 ms 95th, 199 ms 99th, 221 ms 99.9th.
1000000 steady state records sent, 800000.000000 records/sec (107.57 MB/sec), 35.54 ms avg latency, 144.00 ms max \
latency, 20 ms 50th, 114 ms 95th, 135 ms 99th, 143 ms 99.9th.

"""
HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
)
ROW = (
    "2026-01-02 20:38:26:892, 2026-01-02 20:38:30:486, 295.6390, 82.2591, 2000000, 556483.0273, 563, 3031, 97.5384, "
    "659848.2349\n"
)
WARNING = (
    "WARNING: Exiting before consuming the expected number of records: timeout (10000 ms) exceeded. You can use the "
    "--timeout option to increase the timeout.\n"
)


@pytest.mark.broker
def test_the_tools_write_and_read_every_record(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    servers, orders = kafka_broker.bootstrap_servers, Orders(2_345)
    with Sources(servers) as sources:
        written = ProducerTool(servers, orders, tmp_path).run(0)
        found = ConsumerTool(servers, sources.topic(orders), orders).run(0)
        # It stops after the 500 records that come with the last one: there are more than it was told of.
        more = ConsumerTool(servers, sources.topic(orders), Orders(999)).run(0)

    for run in (written, found):
        assert run.problems() == []
        assert run.records == 2_345
        assert 0 < run.seconds < 60
    told = f"the tool says 1,000 records of {1_000 * (VALUE_BYTES + 14) / 2**20:.4f} MiB, where 999 of "
    (problem,) = more.problems()
    assert problem.startswith(told)


@pytest.mark.parametrize(
    ("tool", "words"),
    [("ProducerPerformance", "unrecognized.*bad"), ("ConsumerPerformance", "bad is not a recognized option")],
)
def test_a_tool_that_fails_is_quoted(tool: str, words: str) -> None:
    with pytest.raises(ToolError, match=f"(?s)^{tool} failed with exit code 1, Kafka .* said:.*{words}"):
        run_tool(tool, "--bad")


@pytest.mark.broker
def test_a_topic_that_was_not_drawn_from_the_values_is_found_out(
    kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic, servers = kafka_topic("drawn"), kafka_broker.bootstrap_servers
    values = [Orders(3).value(number) for number in range(3)]
    produce(topic, [{"value": value} for value in (values[2], values[0], values[2])])
    assert drawn_problems(servers, topic, values, 3) == []

    produce(topic, [{"value": b""}, {"value": values[1][:-1]}, {"key": "a", "value": values[1]}])
    # What is not committed is not there.
    produce(topic, [{"value": values[1]}], transaction="abort")
    assert drawn_problems(servers, topic, values, 4) == [
        f"{topic}: 3 records were not drawn from what was given",
        f"{topic}: 3 records were drawn from what was given, where 4 are right",
    ]


def test_the_tool_compresses_and_batches_as_kpipe_does() -> None:
    settings = ConnectionSettings(bootstrap_servers="127.0.0.1:9")
    spec = WriterSpec(
        settings=settings,
        source_settings=settings,
        slice=Slice("kpipe.copied", "run", "abc", (PlannedRange(OffsetRange("orders", 0, 0, 5), "id", 0, 5, None),)),
        mode="transactional",
        topic="copied",
        limits=TopicLimits(),
        dead_letters=(DeadLetterContext("orders.dlq", asset="copied", run_id="run", group="kpipe.copied"),),
        policies=FaultPolicies(FaultAction.DEAD_LETTER),
        codecs=((RawCodec(), RawCodec()),),
        isolation="read_committed",
    )

    ours = WriterTask(spec).producer_settings()

    for name in ("compression.type", "linger.ms", "batch.size"):
        assert PRODUCER[name] == str(ours[name])
    assert PRODUCER["compression.type"] == KafkaDestination.model_fields["compression"].default
    # librdkafka's queue has another name, and its acknowledgements are those of all replicas by default.
    assert int(PRODUCER["buffer.memory"]) == int(ours["queue.buffering.max.kbytes"]) * 1_024
    assert ours["enable.idempotence"] is True
    assert (PRODUCER["acks"], PRODUCER["enable.idempotence"]) == ("all", "true")


def test_records_and_seconds_after_the_warm_up_are_read() -> None:
    assert parse_sent(SENT) == Sent(2_000_000, 1_000_000, 1.25)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "java.lang.OutOfMemoryError: Java heap space",
        # Without the one total, the other, or both, which the line of five seconds is not.
        re.sub(r"^2000000 .*\n", "", SENT, flags=re.MULTILINE),
        re.sub(r"^1000000 .*\n", "", SENT, flags=re.MULTILINE),
        re.sub(r"^[12]000000 .*\n", "", SENT, flags=re.MULTILINE),
        SENT.replace("800000.000000", "NaN"),
        SENT.replace("800000.000000", "0.000000"),
        SENT.replace("800000.000000", "800000,000000"),
        SENT.replace("records sent", "messages sent"),
        # Cut off.
        SENT[: SENT.index(" ms 99th, 143")],
    ],
)
def test_totals_that_are_not_as_expected_are_quoted(text: str) -> None:
    with pytest.raises(ToolError, match="ProducerPerformance told no totals") as caught:
        parse_sent(text)
    assert (text.strip()[-100:] or "It said:\nnothing") in str(caught.value)


@pytest.mark.parametrize("text", [HEADER + ROW, f"an error of the log\n{HEADER}{WARNING}{ROW}\nanother, one\n"])
def test_what_was_fetched_and_how_long_that_took_is_read(text: str) -> None:
    assert parse_fetched(text) == Fetched(2_000_000, 295.639, 3.031)


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEADER,
        ROW,
        HEADER + WARNING,
        HEADER + ROW[: ROW.index(", 97.5")],
        HEADER.replace("fetch.time.ms", "fetch.time.s") + ROW,
        HEADER + ROW.replace("2000000", "2,000,000"),
        HEADER + ROW.replace("295.6390", "many"),
        HEADER + ROW.replace("3031", "3031.5"),
    ],
)
def test_a_table_that_is_not_as_expected_is_quoted(text: str) -> None:
    with pytest.raises(ToolError, match="ConsumerPerformance told no table") as caught:
        parse_fetched(text)
    assert (text.strip()[-100:] or "It said:\nnothing") in str(caught.value)


@pytest.mark.parametrize("milliseconds", ["0", "-12"])
def test_fetching_takes_time(milliseconds: str) -> None:
    with pytest.raises(ToolError, match=f"told of {milliseconds} ms of fetching"):
        parse_fetched(HEADER + ROW.replace("3031", milliseconds))
