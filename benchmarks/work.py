"""The work of a case, defined once for kpipe, for plain Spark, and for the checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

import kpipe_platform as kp
from benchmarks.checks import copied_problems, dead_letter_problems, enriched_problems
from benchmarks.measure import Problems
from benchmarks.orders import COUNTRIES, FIELDS, TAX, Orders
from kpipe_platform.codecs import Codec


@dataclass(frozen=True)
class Work(ABC):
    """A source topic, and what is to become of its records.

    Args:
        bootstrap_servers: The broker.
        source: The source topic; order n is in partition n % ``partitions``.
        orders: The orders that are to be taken, from the topic's start.
        partitions: Partitions of the source, and of the outputs.
        headers: Whether the records have headers.
    """

    bootstrap_servers: str
    source: str
    orders: Orders
    partitions: int = 1
    headers: bool = False

    @property
    @abstractmethod
    def codec(self) -> Codec:
        """How kpipe reads the source."""

    @property
    def connection(self) -> kp.KafkaConnection:
        """How kpipe connects."""
        return kp.KafkaConnection(bootstrap_servers=self.bootstrap_servers)

    @abstractmethod
    def target(self, out: str) -> kp.KafkaTopic:
        """How kpipe writes the outputs."""

    @abstractmethod
    def stage(self, rows: DataFrame) -> DataFrame:
        """The function of the ``@kafka_asset``."""

    @abstractmethod
    def by_hand(self, rows: DataFrame) -> DataFrame:
        """The same for rows of Spark's Kafka source and for Spark's Kafka sink; what does not decode is left out."""

    @property
    @abstractmethod
    def bad(self) -> int:
        """How many records have to be dead-lettered."""

    @abstractmethod
    def output_problems(self, out: str) -> Problems:
        """What is wrong with the outputs."""

    def dead_letter_problems(self, dead_letters: str) -> Problems:
        """What is wrong with the dead letters."""
        orders = self.orders if self.bad else Orders(0)
        return dead_letter_problems(self.bootstrap_servers, dead_letters, orders, self.partitions)


@dataclass(frozen=True)
class JsonEnrich(Work):
    """Decode JSON, compute a column, encode JSON.

    Args:
        keeps_kafka: Whether kpipe's stage keeps ``_kafka``: the outputs then carry the header ``kpipe.source``.
    """

    keeps_kafka: bool = False

    @property
    def codec(self) -> Codec:
        return kp.JsonCodec(FIELDS)

    def target(self, out: str) -> kp.KafkaTopic:
        return kp.KafkaTopic(out, key_column="customer")

    def stage(self, rows: DataFrame) -> DataFrame:
        columns = ["order_id", "customer", "country", "gross", *(["_kafka"] if self.keeps_kafka else [])]
        return rows.withColumn("gross", F.col("amount") * TAX).select(*columns)

    def by_hand(self, rows: DataFrame) -> DataFrame:
        order = rows.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("order")).select("order.*")
        value = F.struct("order_id", "customer", "country", (F.col("amount") * TAX).alias("gross"))
        return order.where("order_id is not null").select(
            F.col("customer").alias("key"), F.to_json(value).alias("value")
        )

    @property
    def bad(self) -> int:
        return self.orders.bad

    def output_problems(self, out: str) -> Problems:
        return enriched_problems(self.bootstrap_servers, out, self.orders, self.partitions)


@dataclass(frozen=True)
class StagedOrders(JsonEnrich, ABC):
    """The same outputs by another kind of stage, which keeps ``_kafka``."""

    def stage(self, rows: DataFrame) -> DataFrame:
        return self.with_gross(rows).select(*_ENRICHED, "_kafka")

    def by_hand(self, rows: DataFrame) -> DataFrame:
        order = rows.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("order")).select("order.*")
        value = F.struct(*_ENRICHED)
        return self.with_gross(order.where("order_id is not null")).select(
            F.col("customer").alias("key"), F.to_json(value).alias("value")
        )

    @abstractmethod
    def with_gross(self, orders: DataFrame) -> DataFrame:
        """Orders with the column ``gross``."""


@dataclass(frozen=True)
class JoinOrders(StagedOrders):
    """A broadcast join with a small table, which has the tax of each country."""

    def with_gross(self, orders: DataFrame) -> DataFrame:
        taxes = orders.sparkSession.createDataFrame(
            [(country, TAX) for country in COUNTRIES], "country string, tax double"
        )
        return orders.join(F.broadcast(taxes), "country").withColumn("gross", F.col("amount") * F.col("tax"))


@dataclass(frozen=True)
class UdfOrders(StagedOrders):
    """A Python UDF of one column."""

    def with_gross(self, orders: DataFrame) -> DataFrame:
        tax = TAX
        gross = F.udf(lambda amount: amount * tax, "double")
        return orders.withColumn("gross", gross("amount"))


@dataclass(frozen=True)
class PandasOrders(StagedOrders):
    """A pandas UDF of one column."""

    def with_gross(self, orders: DataFrame) -> DataFrame:
        tax = TAX

        def gross(amount: pd.Series) -> pd.Series:
            return amount * tax

        return orders.withColumn("gross", pandas_udf(gross, "double")("amount"))  # type: ignore[call-overload]


@dataclass(frozen=True)
class MapOrders(StagedOrders):
    """A Python function that takes a record and returns one: ``map_records``, and by hand ``mapInArrow``."""

    def stage(self, rows: DataFrame) -> DataFrame:
        return kp.map_records(rows, _enriching(), schema=_ENRICHED_SCHEMA)

    def with_gross(self, orders: DataFrame) -> DataFrame:
        enriched = _enriching()

        def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield pa.RecordBatch.from_pylist([enriched(row) for row in batch.to_pylist()])

        return orders.mapInArrow(mapped, _ENRICHED_SCHEMA)


_ENRICHED = ("order_id", "customer", "country", "gross")
_ENRICHED_SCHEMA = "order_id BIGINT, customer STRING, country STRING, gross DOUBLE"


def _enriching() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What enriches one order; it is pickled by value, because a Connect server need not have this package."""
    tax = TAX

    def enriched(order: dict[str, Any]) -> dict[str, Any]:
        kept = {name: order[name] for name in ("order_id", "customer", "country")}
        return {**kept, "gross": order["amount"] * tax}

    return enriched


@dataclass(frozen=True)
class RawCopy(Work):
    """Copy keys and values as they are, and headers where the records have some."""

    @property
    def codec(self) -> Codec:
        return kp.RawCodec()

    def target(self, out: str) -> kp.KafkaTopic:
        return kp.KafkaTopic(out, value_codec=kp.RawCodec())

    def stage(self, rows: DataFrame) -> DataFrame:
        return rows.select("_kafka.key", "value", *(["_kafka.headers"] if self.headers else []))

    def by_hand(self, rows: DataFrame) -> DataFrame:
        return rows.select("key", "value", *(["headers"] if self.headers else []))

    @property
    def bad(self) -> int:
        return 0

    def output_problems(self, out: str) -> Problems:
        return copied_problems(self.bootstrap_servers, out, self.orders, self.partitions, headers=self.headers)
