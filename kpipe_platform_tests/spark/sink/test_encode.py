"""Outputs that cannot be encoded are refused before a job runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from kpipe_platform import Codec, JsonCodec, KafkaTopic, RawCodec
from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.sink.encode import (
    Routing,
    declared_fields,
    encoded_columns,
    refuse_unused,
    value_fields,
    with_keys,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def output(spark: SparkSession) -> DataFrame:
    columns = "'a' AS note", "1.5D AS amount", "array(1) AS numbers", "2 AS id", "named_struct('n', 3) AS inner"
    return spark.range(1).selectExpr(*columns)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"partition_column": "amount"}, "partition column 'amount' is double"),
        ({"headers_column": "note"}, "headers column 'note' is string"),
        ({"headers_column": "numbers"}, "headers column 'numbers' is array<int>"),
        ({"timestamp_column": "note"}, "timestamp column 'note' is string"),
        ({"partition_column": "no"}, "column 'no' is not in the stage's output"),
        ({"key_expression": "upper("}, "key_expression='upper\\('"),
        ({"key_expression": "max(id)"}, "key_expression='max\\(id\\)' does not fit"),
        ({"key_expression": "explode(numbers)"}, "key_expression='explode\\(numbers\\)' does not fit"),
        ({"key_expression": "no"}, "key_expression='no' does not fit"),
    ],
)
def test_columns_that_do_not_fit(output: DataFrame, wrong: dict[str, Any], message: str) -> None:
    topics = [KafkaTopic("t", **wrong)]
    with pytest.raises(ConfigError, match=message):
        encoded_columns(with_keys(output, topics).schema, topics)


def test_headers_go_by_the_names_of_their_fields(output: DataFrame) -> None:
    topic = KafkaTopic("t", headers_column="headers")
    with_headers = output.selectExpr("id", "array(named_struct('value', 'v', 'key', 'k')) AS headers")
    columns = encoded_columns(with_headers.schema, [topic])
    assert with_headers.select(columns["headers"]).collect()[0][0] == [("k", b"v")]
    # The name of a header must not be taken from another field because of its position.
    others = output.selectExpr("id", "array(named_struct('content', 'v', 'name', 'k')) AS headers")
    with pytest.raises(ConfigError, match="headers column 'headers' is array<struct<content:string,name:string>>"):
        encoded_columns(others.schema, [topic])


@dataclass(frozen=True)
class Counts(Codec):
    """Has a type that JSON cannot hold, as Protobuf's maps."""

    name: ClassVar[str] = "counts"

    @property
    def value_type(self) -> T.StructType:
        return T.StructType([T.StructField("counts", T.MapType(T.IntegerType(), T.StringType()))])

    def _decode(self, data: bytes) -> Any:
        raise NotImplementedError

    def _encode(self, value: Any) -> bytes:
        raise NotImplementedError


def test_topics_of_different_codecs_declare_their_fields_together() -> None:
    topics = [KafkaTopic("a", value_codec=Counts()), KafkaTopic("b", value_codec=JsonCodec("id INT"))]
    assert declared_fields([*topics, KafkaTopic("c", value_codec=RawCodec())]).names == ["counts", "id"]


def test_fields_of_structs_make_parts_of_the_record(output: DataFrame) -> None:
    topic = KafkaTopic("t", key_expression="inner.n + id", partition_column="inner.n", timestamp_column="id")
    keyed = with_keys(output, [topic])
    columns = encoded_columns(keyed.schema, [topic])
    (row,) = keyed.select(columns["key"], columns["value"], columns["partition"], columns["timestamp_ms"]).collect()
    assert row[0] == b"5"
    assert row[1] == b'{"note":"a","amount":1.5,"numbers":[1],"inner":{"n":3}}'
    assert row[2:] == (3, 2)


def test_topics_get_what_they_declare(output: DataFrame) -> None:
    declared = KafkaTopic("a", value_codec=JsonCodec("id INT, amount DOUBLE"))
    other = KafkaTopic("b", value_codec=JsonCodec("note STRING"), key_column="inner.n")
    raw = KafkaTopic("c", value_codec=RawCodec())
    fields = [value_fields(output.schema, topic, "note").names for topic in (declared, other, raw)]
    assert fields == [["amount", "id"], ["note"], []]
    with pytest.raises(ConfigError, match="columns that no topic declares: 'numbers'"):
        refuse_unused(output.schema, [declared, other], "note")
    refuse_unused(output.schema, [declared, KafkaTopic("d")], "note")
    with pytest.raises(ConfigError, match="column 'id' is int, but it names the topic of each row"):
        encoded_columns(output.schema, [declared, other], Routing("id", ("a", "b")))
