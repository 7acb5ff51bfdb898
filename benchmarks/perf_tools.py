"""Kafka's own performance tools as contestants: what the brokers take, and give, when nothing else is done."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.checks import drawn_problems
from benchmarks.measure import Problems, Run
from benchmarks.orders import Orders
from benchmarks.perf_output import Fetched, Sent, ToolError, parse_fetched, parse_sent
from benchmarks.topics import TOPIC, run_tag
from kpipe_platform.jvm.jars import KAFKA_VERSION, class_path, fetch_jars, kafka_broker_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.testing.topics import create_topic, delete_topic

TOOLS = f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}"

# What kpipe's destination does by default; its batches are as large as a topic's default limit lets them be.
PRODUCER = {
    "acks": "all",
    "enable.idempotence": "true",
    "compression.type": "lz4",
    "linger.ms": "20",
    "batch.size": "999488",
    "buffer.memory": "134217728",
}

# The tool holds them all in memory. Among so many, one is rarely drawn twice for a batch, where it would compress well.
_PAYLOADS = 100_000
# No transaction is to end before the last record.
_TRANSACTION_MS = "600000"
_JVM = (
    # Heap and collector are those of kafka-producer-perf-test.sh and kafka-consumer-perf-test.sh.
    *("-Xmx512M", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    # Their numbers are written as the JVM's language writes them.
    *("-Duser.language=en", "-Duser.country=US"),
)
_DEADLINE_S = 900.0


class ProducerTool:
    """``ProducerPerformance``: values into one partition, in one transaction, as kpipe's slice is.

    It draws each value at random from a file, and writes no keys. As many records as are measured come first, while
    its JVM compiles. The time is the tool's own: from the first measured record until all is committed.

    Args:
        bootstrap_servers: The broker.
        orders: How many records, and what they are drawn from.
        folder: Where its file goes.
    """

    name = "producer_perf_test"

    def __init__(self, bootstrap_servers: str, orders: Orders, folder: Path) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._count = orders.count
        values = [orders.value(number) for number in range(min(orders.count, _PAYLOADS))]
        self._values = frozenset(values)
        self._file = folder / "payloads"
        # What follows a line break is a value, so there is none after the last one.
        self._file.write_bytes(b"\n".join(values))

    def run(self, turn: int) -> Run:
        tag = run_tag("limit", self.name, turn)
        topic = f"{tag}.out"
        create_topic(self._bootstrap_servers, topic, config=TOPIC)
        output = run_tool(
            "ProducerPerformance",
            *("--bootstrap-server", self._bootstrap_servers, "--topic", topic),
            *("--num-records", str(2 * self._count), "--warmup-records", str(self._count), "--throughput", "-1"),
            *("--payload-file", str(self._file)),
            *("--transactional-id", tag, "--transaction-duration-ms", _TRANSACTION_MS),
            *("--command-property", *(f"{name}={value}" for name, value in PRODUCER.items())),
            f"transaction.timeout.ms={_TRANSACTION_MS}",
        )
        sent = parse_sent(output)
        return Run(sent.seconds, self._count, lambda: self._problems(topic, sent))

    def _problems(self, topic: str, sent: Sent) -> Problems:
        everything = 2 * self._count
        problems = []
        if (sent.records, sent.measured) != (everything, self._count):
            counted = f"{sent.records:,} records and {sent.measured:,} after the warm-up"
            problems = [f"the tool reports {counted}, expected {everything:,} and {self._count:,}"]
        problems += drawn_problems(self._bootstrap_servers, topic, self._values, everything)
        delete_topic(self._bootstrap_servers, topic)
        return problems


class ConsumerTool:
    """``ConsumerPerformance``: a topic of one partition, from its start to its end, committed records alone.

    It knows no warm-up, and its JVM compiles for most of the first second: the topic should be long. The time is the
    tool's own: from when it has the partition to the last record.

    Args:
        bootstrap_servers: The broker.
        source: The topic.
        orders: What is in it.
    """

    name = "consumer_perf_test"

    def __init__(self, bootstrap_servers: str, source: str, orders: Orders) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._source = source
        self._orders = orders

    def run(self, turn: int) -> Run:
        output = run_tool(
            "ConsumerPerformance",
            *("--bootstrap-server", self._bootstrap_servers, "--topic", self._source),
            *("--num-records", str(self._orders.count)),
            *("--group", run_tag(self._source, self.name, turn)),
            *("--command-property", "isolation.level=read_committed"),
        )
        fetched = parse_fetched(output)
        return Run(fetched.seconds, self._orders.count, lambda: self._problems(fetched))

    def _problems(self, fetched: Fetched) -> Problems:
        orders = self._orders
        # All keys are of one size, and so are all values.
        mib = orders.count * (len(orders.key(0)) + len(orders.value(0))) / 2**20
        if fetched.records == orders.count and abs(fetched.mib - mib) < 0.001:
            return []
        counted = f"{fetched.records:,} records of {fetched.mib:.4f} MiB"
        return [f"the tool reports {counted}, expected {orders.count:,} of {mib:.4f} MiB from {self._source}"]


def run_tool(name: str, *arguments: str) -> str:
    """Run a class of ``org.apache.kafka.tools`` to its end; returns what it wrote, its errors last.

    Raises:
        ToolError: It failed.
    """
    # The broker's jars have all that the tools need.
    jars = [*fetch_jars(TOOLS, dependencies=False), *kafka_broker_jars()]
    done = subprocess.run(
        [find_java().path, *_JVM, "-cp", class_path(jars), f"org.apache.kafka.tools.{name}", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_DEADLINE_S,
        check=False,
    )
    text = f"{done.stdout}\n{done.stderr}"
    if done.returncode:
        what = f"{name} failed with exit code {done.returncode}"
        raise ToolError(what, text)
    return text
