"""Protobuf with a schema registry: the work of ``json_1p``, over a confluent-kafka loop with its deserializer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kafka_loop import KafkaLoop
from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.protobuf import protobuf_work
from benchmarks.topics import Sources


class Protobuf1p:
    """The figure ``protobuf_1p``: records a second over the loop."""

    name = "protobuf_1p"
    title = "Protobuf enrich with a schema registry, 1 partition, over a confluent-kafka loop"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        with protobuf_work(bench.bootstrap_servers, sources, bench.records) as work:
            yield Contest(
                self.name,
                (
                    Kpipe("kpipe", work, bench.engine()),
                    KafkaLoop("confluent_kafka_loop", work, work.loop()),
                ),
                (Ratio(self.name, "kpipe", "confluent_kafka_loop"),),
                bench.turns,
                bench.warm_up_turns,
            )
