"""One hot partition of JSON: decode, enrich, encode; exactly once with dead letters beside Structured Streaming.

Both sides read the same topic and write the same keys and values of every good record. Structured Streaming leaves
out what does not decode; kpipe dead-letters it, in the transaction of the outputs and the offsets. A kpipe run is a
whole in-process ``dg.materialize``: plan, read, write, commit, report.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import kpipe_platform as kp
from benchmarks.measure import Bench, Contest, Problems, Ratio, Run, stopwatch
from benchmarks.orders import FIELDS, TAX, Orders
from benchmarks.topics import dead_letter_problems, enriched_problems, fill
from kpipe_platform.testing.topics import create_topic, delete_topic

_STEPS = ("plan", "spark", "open", "write", "commit")
# Old timestamps are none of a benchmark's business, and neither is retention.
_TOPIC = {"retention.ms": "-1"}
# What kpipe's destination does by default: without it the sink sends small batches, uncompressed.
_LZ4 = {"kafka.compression.type": "lz4", "kafka.linger.ms": "20", "kafka.batch.size": "262144"}


class Json1p:
    """The figure ``json_1p``, and two beside it.

    ``json_1p_with_source`` keeps ``_kafka``, so that each output says its source. ``json_1p_over_lz4`` is over
    Structured Streaming whose sink is set to compress and batch as kpipe's destination does.
    """

    name = "json_1p"
    title = "JSON enrich, 1 partition, over Structured Streaming"

    @contextmanager
    def open(self, bench: Bench) -> Iterator[Contest]:
        orders = Orders(bench.records)
        source = f"orders-{uuid.uuid4().hex[:8]}"
        create_topic(bench.bootstrap_servers, source, config=_TOPIC)
        try:
            fill(bench.bootstrap_servers, source, orders)
            engine = kp.SparkEngine()
            yield Contest(
                self.name,
                (
                    Kpipe("kpipe", bench.bootstrap_servers, source, orders, engine, keeps_kafka=False),
                    Kpipe("kpipe_with_source", bench.bootstrap_servers, source, orders, engine, keeps_kafka=True),
                    StructuredStreaming(
                        "structured_streaming", bench.bootstrap_servers, source, orders, engine.spark_session
                    ),
                    StructuredStreaming(
                        "structured_streaming_lz4",
                        bench.bootstrap_servers,
                        source,
                        orders,
                        engine.spark_session,
                        options=_LZ4,
                    ),
                ),
                (
                    Ratio("json_1p", "kpipe", "structured_streaming"),
                    Ratio("json_1p_with_source", "kpipe_with_source", "structured_streaming"),
                    Ratio("json_1p_over_lz4", "kpipe", "structured_streaming_lz4"),
                ),
                bench.turns,
                bench.warm_up_turns,
            )
        finally:
            delete_topic(bench.bootstrap_servers, source)


class Kpipe:
    """A ``@kafka_asset``, materialised in-process over the partition in one slice.

    Args:
        name: Key in the report.
        bootstrap_servers: The broker.
        source: Source topic.
        orders: What is in it.
        engine: The warm Spark session.
        keeps_kafka: Whether the stage keeps ``_kafka``: the outputs then carry the header ``kpipe.source``.
    """

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        source: str,
        orders: Orders,
        engine: kp.SparkEngine,
        *,
        keeps_kafka: bool,
    ) -> None:
        self.name = name
        self._bootstrap_servers = bootstrap_servers
        self._source = source
        self._orders = orders
        self._engine = engine
        self._keeps_kafka = keeps_kafka

    def run(self, turn: int) -> Run:
        tag = f"{self._source}.{self.name}.{turn}"
        out, letters = create_topic(self._bootstrap_servers, f"{tag}.out", config=_TOPIC), f"{tag}.dlq"
        create_topic(self._bootstrap_servers, letters, config=_TOPIC)
        source, asset = self._assets(out)
        resources = {"kafka_io_manager": self._io_manager(tag, letters)}
        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        with dg.DagsterInstance.ephemeral() as instance:
            elapsed = stopwatch()
            result = dg.materialize(
                [source, asset],
                selection=[asset],
                resources=resources,
                partition_key="0",
                instance=instance,
                run_config=quiet,
            )
            seconds = elapsed()
        metadata = result.asset_materializations_for_node(asset.node_def.name)[0].metadata
        steps = _steps(metadata)
        steps["dagster"] = max(seconds - sum(steps.values()), 0.0)
        return Run(seconds, self._orders.count, lambda: self._problems(out, letters, metadata), steps)

    def _assets(self, out: str) -> tuple[dg.SourceAsset, dg.AssetsDefinition]:
        orders = kp.kafka_topic_asset(self._source, name="orders", value=kp.JsonCodec(FIELDS), partitions=1)
        columns = ["order_id", "customer", "country", "gross", *(["_kafka"] if self._keeps_kafka else [])]

        @kp.kafka_asset(source=orders, topic=kp.KafkaTopic(out, key="customer"), on_fault=kp.FaultAction.DEAD_LETTER)
        def orders_enriched(orders: DataFrame) -> DataFrame:
            return orders.withColumn("gross", F.col("amount") * TAX).select(*columns)

        return orders, orders_enriched

    def _io_manager(self, group_prefix: str, letters: str) -> kp.KafkaIOManager:
        connection = kp.KafkaConnection(bootstrap_servers=self._bootstrap_servers)
        return kp.KafkaIOManager(
            source=kp.KafkaSource(connection=connection, group_prefix=group_prefix, start="earliest"),
            destination=kp.KafkaDestination(connection=connection, delivery="exactly_once"),
            dead_letter=kp.KafkaDeadLetterDestination(connection=connection, topic=letters),
            spark=self._engine,
        )

    def _problems(self, out: str, letters: str, metadata: Any) -> Problems:
        orders = self._orders
        expected = {
            "records_read": orders.count,
            "records_written": orders.count - orders.bad,
            "dead_letters": orders.bad,
            "skipped": 0,
            "lag": 0,
        }
        told = {name: metadata[name].value for name in expected}
        problems = [f"the metadata says {told}, where {expected} is right"] if told != expected else []
        problems += enriched_problems(self._bootstrap_servers, out, orders)
        problems += dead_letter_problems(self._bootstrap_servers, letters, orders)
        for topic in (out, letters):
            delete_topic(self._bootstrap_servers, topic)
        return problems


def _steps(metadata: Any) -> dict[str, float]:
    rows = {record.data["step"]: record.data["seconds"] for record in metadata["steps"].records}
    return {step: float(rows[step]) for step in _STEPS}


class StructuredStreaming:
    """A streaming query with the trigger ``availableNow``, from the topic's start to its end, at least once.

    Args:
        name: Key in the report.
        bootstrap_servers: The broker.
        source: Source topic.
        orders: What is in it.
        session: The warm Spark session, kpipe's own.
        options: Further options of the sink.
    """

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        source: str,
        orders: Orders,
        session: SparkSession,
        *,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._options = dict(options or {})
        self._bootstrap_servers = bootstrap_servers
        self._source = source
        self._orders = orders
        self._session = session

    def run(self, turn: int) -> Run:
        out = create_topic(self._bootstrap_servers, f"{self._source}.{self.name}.{turn}.out", config=_TOPIC)
        with tempfile.TemporaryDirectory(prefix="kpipe-bench-") as checkpoint:
            elapsed = stopwatch()
            query = (
                self._enriched()
                .writeStream.format("kafka")
                .option("kafka.bootstrap.servers", self._bootstrap_servers)
                .option("topic", out)
                .options(**self._options)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            seconds = elapsed()
        return Run(seconds, self._orders.count, lambda: self._problems(out))

    def _enriched(self) -> DataFrame:
        rows = (
            self._session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap_servers)
            .option("subscribe", self._source)
            .option("startingOffsets", "earliest")
            .load()
        )
        order = rows.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("order")).select("order.*")
        value = F.struct("order_id", "customer", "country", (F.col("amount") * TAX).alias("gross"))
        return order.where("order_id is not null").select(
            F.col("customer").alias("key"), F.to_json(value).alias("value")
        )

    def _problems(self, out: str) -> Problems:
        problems = enriched_problems(self._bootstrap_servers, out, self._orders)
        delete_topic(self._bootstrap_servers, out)
        return problems
