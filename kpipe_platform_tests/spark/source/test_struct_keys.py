from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kpipe_platform import ConnectJsonCodec, JsonCodec
from kpipe_platform.codecs import Codec, RawCodec
from kpipe_platform.spark.source.reader import _SOURCE_COLUMNS
from kpipe_platform.spark.source.rows import TopicCodecs, decode_rows

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("codec", [JsonCodec("id INT"), ConnectJsonCodec("id INT", schemas=False)])
def test_a_key_has_only_the_declared_fields(spark: SparkSession, codec: Codec) -> None:
    rows = spark.createDataFrame([(b'{"id":1,"more":2}', b"v", "t", 0, 0, None, 0, None)], _SOURCE_COLUMNS)
    good = decode_rows(rows, TopicCodecs(codec, RawCodec()), src=F.lit(0)).good
    assert good.select("_kafka.key").schema["key"].dataType.simpleString() == "struct<id:int>"
    assert [row.key.id for row in good.select("_kafka.key").collect()] == [1]
