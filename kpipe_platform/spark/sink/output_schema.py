"""Checks of a stage's output schema before a job runs."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec
from kpipe_platform.codecs.types import is_type, stage_type
from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.columns import MISFIT


def check_output_schema(output: object, codec: Codec, topic: str, fields: T.StructType | None = None) -> None:
    """Refuse an output that does not match its topic's declared schema.

    Args:
        output: What the stage returned.
        codec: The destination's codec; only a JSON codec with a schema declares fields.
        topic: Destination topic, for the message.
        fields: The columns that become the value; None: all except ``_kafka``.

    Raises:
        ConfigError: The output is not a DataFrame, or a field is missing, undeclared, or has another type.
    """
    if not isinstance(output, DataFrame):
        msg = f"the stage returned {type(output).__name__} for topic {topic!r}"
        raise ConfigError(msg, fix="return a Spark DataFrame")
    if not codec.is_struct or not codec.has_schema:
        return
    returned = {f.name: f.dataType for f in fields or output.schema if f.name != "_kafka"}
    declared = {f.name: f.dataType for f in codec.fields}
    problems = [f"{name!r} is declared but not returned" for name in declared if name not in returned]
    problems += [f"{name!r} is returned but not declared" for name in returned if name not in declared]
    problems += [
        f"{name!r} is {returned[name].simpleString()}, declared as {kind.simpleString()}"
        for name, kind in declared.items()
        if name in returned and not is_type(returned[name], stage_type(kind))
    ]
    if problems:
        msg = f"the stage's output does not match the schema of topic {topic!r}: {'; '.join(problems)}"
        raise ConfigError(msg, fix="cast or select the columns, or correct KafkaTopic(value_codec=JsonCodec(...))")


def columns_of(output: object, fields: T.StructType | None = None) -> list[tuple[str, str]]:
    """Name and type of each column that is written; empty if the output is not a Spark DataFrame.

    Args:
        output: What the stage returned.
        fields: The columns that become the value; None: all.
    """
    if not isinstance(output, DataFrame):
        return []
    return [(f.name, f.dataType.simpleString()) for f in fields or output.schema if f.name not in ("_kafka", MISFIT)]
