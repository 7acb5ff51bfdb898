"""Four partitions of JSON at least once, compared with a Spark batch job with Spark's own Kafka sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.cases.json_4p import PARTITIONS
from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import Orders
from benchmarks.spark_alone import SparkBatch
from benchmarks.topics import Sources
from benchmarks.work import JsonEnrich


class AtLeastOnce4p:
    """The figure ``at_least_once_4p``."""

    name = "at_least_once_4p"
    title = "JSON enrich, 4 partitions, at least once, over Spark batch and its Kafka sink"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, servers = Orders(bench.records), bench.bootstrap_servers
        source = sources.topic(orders, partitions=PARTITIONS)
        engine, work = bench.engine(), JsonEnrich(servers, source, orders, PARTITIONS)
        yield Contest(
            self.name,
            (
                Kpipe("kpipe", work, engine, delivery="at_least_once"),
                SparkBatch("spark_batch", work, engine.spark_session),
            ),
            (Ratio("at_least_once_4p", "kpipe", "spark_batch"),),
            bench.turns,
            bench.short_warm_up,
        )
