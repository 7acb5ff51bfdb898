"""A run that follows a stream, as a contestant: records come at a modest rate, and each has a latency."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

import kpipe_platform as kp
from benchmarks.checks import number_of
from benchmarks.kpipe import Kpipe, counts_of, steps_of
from benchmarks.measure import Problems, Run
from benchmarks.orders import Orders
from benchmarks.topics import TOPIC, run_tag
from benchmarks.work import JsonEnrich
from kpipe_platform.testing.topics import create_topic, delete_topic

_LINGER_S = 4.0
_DEADLINE_S = 120.0


class Following:
    """One run with ``linger_s``, while a producer sends records one by one.

    The latency of a record is from when it was given to the producer to when a reader of committed records has its
    output: it holds the producer, the slice, its transaction, and the reader. Figures: ``p50_s`` and ``p95_s`` of it,
    ``commit_p50_s`` and ``commit_p95_s`` as the run's own metadata has them, and ``slices``.

    Args:
        name: Key in the report.
        bootstrap_servers: The broker.
        engine: The warm Spark session.
        records_a_s: Records that are sent a second.
        seconds: For how long.
    """

    def __init__(
        self, name: str, bootstrap_servers: str, engine: kp.SparkEngine, records_a_s: int, seconds: float
    ) -> None:
        self.name = name
        self._servers = bootstrap_servers
        self._engine = engine
        self._records_a_s = records_a_s
        self._orders = Orders(1 + round(records_a_s * seconds))

    def run(self, turn: int) -> Run:
        source = run_tag("stream", self.name, turn)
        create_topic(self._servers, source, config=TOPIC)
        work = JsonEnrich(self._servers, source, self._orders)
        kpipe = Kpipe(self.name, work, self._engine, linger_s=_LINGER_S)
        topics = kpipe.make_topics(turn)
        with _reading(self._servers, topics.out) as seen, ThreadPoolExecutor(1) as pool:
            running = pool.submit(kpipe.materialize, topics)
            sent = self._send(source, seen, lambda: running.done() and running.result())
            found = running.result(_DEADLINE_S)
            _await(lambda: len(seen) == self._orders.count - self._orders.bad, time.monotonic() + _LINGER_S)
        (metadata,) = found
        # The first record's is the start of the run.
        waited = sorted(at - sent[number] for number, at in seen.items() if number)
        figures = {
            "p50_s": _percentile(waited, 50),
            "p95_s": _percentile(waited, 95),
            "commit_p50_s": metadata["kpipe/latency_p50_ms"].value / 1000,
            "commit_p95_s": metadata["kpipe/latency_p95_ms"].value / 1000,
            "slices": float(metadata["kpipe/slice_count"].value),
        }
        counts = counts_of(found)
        return Run(
            max(sent.values()) - min(sent.values()),
            self._orders.count,
            lambda: self._problems(source, lambda: kpipe.problems(topics, counts)),
            _a_slice(metadata),
            figures=figures,
        )

    def _send(self, source: str, seen: Mapping[int, float], check: Callable[[], object]) -> dict[int, float]:
        """Send the first record, and the others once its output is there; when each was sent, by number."""
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 0, "enable.idempotence": True})
        sent: dict[int, float] = {}

        def send(number: int) -> None:
            sent[number] = time.time()
            producer.produce(source, self._orders.value(number), self._orders.key(number))
            producer.poll(0)

        send(0)
        # A run that failed says why, before the deadline.
        _await(lambda: 0 in seen or bool(check()), time.monotonic() + _DEADLINE_S)
        began = time.monotonic()
        for number in range(1, self._orders.count):
            ahead = began + number / self._records_a_s - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            send(number)
        if producer.flush(_DEADLINE_S):
            msg = f"topic {source} could not be filled"
            raise RuntimeError(msg)
        return sent

    def _problems(self, source: str, of_the_run: Callable[[], Problems]) -> Problems:
        problems = of_the_run()
        delete_topic(self._servers, source)
        return problems


@contextmanager
def _reading(bootstrap_servers: str, topic: str) -> Iterator[dict[int, float]]:
    """When a reader of committed records first had the output of each order, by number."""
    seen: dict[int, float] = {}
    over = threading.Event()
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "benchmarks",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }

    def read() -> None:
        with closing(Consumer(settings)) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while not over.is_set():
                message = consumer.poll(0.05)
                number = None if message is None or message.error() else number_of(message.value())
                if number is not None:
                    seen.setdefault(number, time.time())

    thread = threading.Thread(target=read, name="latency-reader")
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _await(condition: Callable[[], bool], deadline: float) -> None:
    """Wait for it; what is missing at the deadline is found by the checks."""
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def _a_slice(metadata: Mapping[str, Any]) -> dict[str, float]:
    slices = metadata["kpipe/slice_count"].value
    return {step: seconds / slices for step, seconds in steps_of(metadata).items()}
