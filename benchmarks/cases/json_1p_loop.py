"""One partition of JSON beside a plain confluent-kafka loop in transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import kpipe_platform as kp
from benchmarks.kafka_loop import KafkaLoop
from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import Orders
from benchmarks.topics import filled
from benchmarks.work import JsonEnrich


class Json1pLoop:
    """The figure ``json_1p_loop``."""

    name = "json_1p_loop"
    title = "JSON enrich, 1 partition, over a confluent-kafka loop"

    @contextmanager
    def open(self, bench: Bench) -> Iterator[Contest]:
        orders, servers = Orders(bench.records), bench.bootstrap_servers
        with filled(servers, orders) as source:
            work = JsonEnrich(servers, source, orders)
            yield Contest(
                self.name,
                (Kpipe("kpipe", work, kp.SparkEngine()), KafkaLoop("confluent_kafka_loop", work)),
                (Ratio("json_1p_loop", "kpipe", "confluent_kafka_loop"),),
                bench.turns,
                bench.short_warm_up,
            )
