"""The current rows of a table, from the change events of Debezium."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.connect.debezium import DELETE, MESSAGE, TRUNCATE
from kpipe_platform.errors import ConfigError


def current_rows(events: DataFrame, *, on_truncate: Literal["fail", "ignore"] = "fail") -> DataFrame:
    """Turn change events into records of a compacted topic that has the current rows of the table.

    A create, read or update becomes the row after it. A delete, and the tombstone after it, become a tombstone. A
    message of the database is left out.

    Args:
        events: A stage's input from a topic with `DebeziumCodec`.
        on_truncate: What to do with a truncate, which no record with a key can express: ``fail`` the stage for this
            record (the default), or ``ignore`` it.

    Returns:
        Columns of ``after``, and ``_kafka``. Without a ``key_column`` in the destination, each record keeps its key. A
        ``key_column`` must be one of the key's own, such as ``_kafka.key.id``, because a tombstone has no columns.

    Raises:
        ConfigError: The columns are not those of change events, or ``on_truncate`` is unknown.
    """
    after = events.schema["after"].dataType if "after" in events.columns else None
    if not isinstance(after, T.StructType) or not {"op", "_kafka"} <= set(events.columns):
        msg = f"current_rows needs the columns op, after and _kafka of change events, found {', '.join(events.columns)}"
        raise ConfigError(msg, fix="call it with the stage's input, from a topic whose value_codec is DebeziumCodec")
    if on_truncate not in ("fail", "ignore"):
        msg = f"current_rows(on_truncate={on_truncate!r})"
        raise ConfigError(msg, fix="use 'fail' or 'ignore'", setting="on_truncate")
    op = F.col("op")
    kept = F.coalesce(~op.isin(MESSAGE, TRUNCATE), F.lit(True))
    if on_truncate == "fail":
        text = "the table was truncated, which a record with a key cannot express; see current_rows(on_truncate=...)"
        kept = F.when(op == TRUNCATE, F.raise_error(F.lit(text)).cast("boolean")).otherwise(kept)
    gone = F.coalesce(op == DELETE, F.lit(True))
    rows = [F.col("after")[name].alias(name) for name in after.names]
    return events.where(kept).select(*rows, F.col("_kafka").withField("tombstone", gone).alias("_kafka"))
