"""A stage for each form that passes its input on unchanged."""

from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from kpipe_platform import KafkaRecord


def as_spark(orders: DataFrame) -> DataFrame:
    return orders


def as_pandas(orders: pd.DataFrame) -> pd.DataFrame:
    return orders


def as_arrow(orders: pa.Table) -> pa.Table:
    return orders


def as_polars(orders: pl.DataFrame) -> pl.DataFrame:
    return orders


def as_records(orders: list[KafkaRecord]) -> list[KafkaRecord]:
    return orders
