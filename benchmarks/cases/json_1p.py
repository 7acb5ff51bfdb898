"""One hot partition of JSON: decode, enrich, encode; exactly once with dead letters, and Structured Streaming.

Both sides read the same topic and write the same keys and values of every good record. Structured Streaming leaves
out what does not decode; kpipe dead-letters it, in the transaction of the outputs and the offsets. So does a plain
confluent-kafka loop, a transaction for every 10,000 records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kafka_loop import KafkaLoop
from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Contestant, Ratio
from benchmarks.orders import Orders
from benchmarks.spark_alone import LZ4, StructuredStreaming
from benchmarks.topics import Sources
from benchmarks.work import JsonEnrich


class Json1p:
    """The figures ``json_1p`` and ``json_1p_loop``, and in full size two more.

    ``json_1p_with_source`` keeps ``_kafka``, so that each output says its source. ``json_1p_over_lz4`` is over
    Structured Streaming whose sink is set to compress and batch as kpipe's destination does.
    """

    name = "json_1p"
    title = "JSON enrich, 1 partition, over Structured Streaming and over a confluent-kafka loop"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, servers = Orders(bench.records), bench.bootstrap_servers
        source = sources.topic(orders)
        engine, work = bench.engine(), JsonEnrich(servers, source, orders)
        session = engine.spark_session
        contestants: list[Contestant] = [
            Kpipe("kpipe", work, engine),
            StructuredStreaming("structured_streaming", work, session),
            KafkaLoop("confluent_kafka_loop", work),
        ]
        ratios = [
            Ratio("json_1p", "kpipe", "structured_streaming"),
            Ratio("json_1p_loop", "kpipe", "confluent_kafka_loop"),
        ]
        if not bench.quick:
            with_source = JsonEnrich(servers, source, orders, keeps_kafka=True)
            contestants += [
                Kpipe("kpipe_with_source", with_source, engine),
                StructuredStreaming("structured_streaming_lz4", work, session, options=LZ4),
            ]
            ratios += [
                Ratio("json_1p_with_source", "kpipe_with_source", "structured_streaming"),
                Ratio("json_1p_over_lz4", "kpipe", "structured_streaming_lz4"),
            ]
        yield Contest(self.name, contestants, ratios, bench.turns, bench.warm_up_turns)
