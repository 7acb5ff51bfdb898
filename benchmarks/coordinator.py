"""``python -m benchmarks.coordinator``: how many transactions a second one transaction coordinator takes.

All producers share one partition of ``__transaction_state``, so one broker coordinates all of them. A transaction is a
small slice's: begin, one record, the group's offset, commit. ``slices`` opens a new producer for each, as a slice's
writer does (``init_transactions`` fences its predecessor); ``transactions`` keeps one producer for all.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.machine import describe_machine
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.records import consume
from kpipe_platform.testing.topics import create_topic

_DEADLINE_S = 60.0
_RECORD = b"x" * 140


@dataclass(frozen=True)
class Figure:
    """What one number of producers reached.

    Args:
        producers: How many at once.
        per_s: Transactions a second, all together.
        p50_ms: Median time of one.
        p95_ms: The time that 95 of 100 stay below.
    """

    producers: int
    per_s: float
    p50_ms: float
    p95_ms: float


class Worker:
    """One transactional id, topic partition and group.

    Args:
        servers: The brokers.
        topic: Topic that it writes to.
        number: Partition, and what tells it from the others.
        touched: Partitions that a transaction writes a record to, from that one on.
    """

    def __init__(self, servers: str, topic: str, number: int, touched: int) -> None:
        self._touched = touched
        self._servers = servers
        self._topic = topic
        self._number = number
        self.sent = 0
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{topic}.{number}"})
        self._producer: Producer | None = None

    def open(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": f"{self._topic}.{self._number}",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        # Twice: without a connection to all brokers the search for the coordinator waits for half a second.
        for _ in range(2):
            producer.list_topics(self._topic, _DEADLINE_S)
        producer.init_transactions(_DEADLINE_S)
        return producer

    def transaction(self) -> None:
        """Run another transaction with the same producer."""
        if self._producer is None:
            self._producer = self.open()
        self._commit(self._producer)

    def slice(self) -> None:
        """Run another transaction with a new producer."""
        self._commit(self.open())

    def close(self) -> None:
        self._consumer.close()

    def _commit(self, producer: Producer) -> None:
        producer.begin_transaction()
        for further in range(self._touched):
            producer.produce(self._topic, _RECORD, partition=self._number + further)
        self.sent += 1
        offset = TopicPartition(self._topic, self._number, self.sent)
        producer.send_offsets_to_transaction([offset], self._consumer.consumer_group_metadata(), _DEADLINE_S)
        producer.commit_transaction(_DEADLINE_S)


_ACTS = {"transactions": Worker.transaction, "slices": Worker.slice}


def measure(servers: str, producers: int, touched: int, seconds: float, act: Callable[[Worker], None]) -> Figure:
    """Let producers work at the same time; every record must be there once in the end.

    Raises:
        RuntimeError: A record is missing, or there twice.
    """
    topic = f"{act.__name__}-{producers}-{touched}"
    create_topic(servers, topic, partitions=producers + touched - 1)
    workers = [Worker(servers, topic, number, touched) for number in range(producers)]
    for worker in workers:
        act(worker)
    times: list[float] = []
    failures: list[BaseException] = []
    begin = time.monotonic()

    def work(worker: Worker) -> None:
        try:
            while (began := time.monotonic()) < begin + seconds:
                act(worker)
                times.append(time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001  # raised again below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - begin
    if failures:
        raise failures[0]
    for worker in workers:
        worker.close()
    found, sent = len(consume(servers, topic)), touched * sum(worker.sent for worker in workers)
    if found != sent:
        raise RuntimeError(f"{sent} records were committed, but {found} can be read")
    ordered = statistics.quantiles(times, n=20)
    return Figure(producers, len(times) / took_s, ordered[9] * 1000, ordered[18] * 1000)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordinator", description=__doc__)
    parser.add_argument(
        "--brokers",
        type=int,
        default=1,
        choices=(1, 3),
        help="brokers, and replicas of all topics",
    )
    parser.add_argument("--producers", type=int, nargs="+", default=[1, 4, 16, 64], help="concurrent producers")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each measurement")
    parser.add_argument(
        "--touched", type=int, nargs="+", default=[1, 16], help="numbers of partitions that a transaction writes to"
    )
    chosen = parser.parse_args()
    replicated = {"default.replication.factor": "3", "min.insync.replicas": "2"} if chosen.brokers == 3 else {}
    settings = {"transaction.state.log.num.partitions": "1", **replicated}
    machine = describe_machine()
    print(
        f"{machine['cores']} cores of {machine['cpu']}, load before {machine['load_before']}, {chosen.brokers} brokers"
    )
    print("| what | partitions written to | producers | a second | p50, ms | p95, ms |\n|---|---:|---:|---:|---:|---:|")
    with EmbeddedBroker(chosen.brokers, settings=settings) as broker:
        servers = broker.bootstrap_servers
        measure(servers, 2, 1, min(chosen.seconds, 3.0), Worker.transaction)
        for (name, act), touched in product(_ACTS.items(), chosen.touched):
            for count in chosen.producers:
                found = measure(servers, count, touched, chosen.seconds, act)
                print(
                    f"| {name} | {touched} | {count} | {found.per_s:.0f} | {found.p50_ms:.1f} | {found.p95_ms:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
