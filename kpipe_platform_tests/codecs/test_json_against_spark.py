"""JsonCodec.diagnose says what Spark's from_json says, case by case, in one Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kpipe_platform.codecs import JsonCodec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CODEC = JsonCodec(
    "tiny TINYINT, i INT, big BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(5,2), b BOOLEAN, s STRING, v VARCHAR(3), "
    "bin BINARY, dt DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, a ARRAY<INT>, m MAP<STRING, INT>, "
    "st STRUCT<x: INT NOT NULL, y: STRING>, l ARRAY<STRUCT<c: STRING NOT NULL>>, "
    "ms MAP<STRING, STRUCT<c: STRING NOT NULL>>, `odd-name` INT, `req` INT NOT NULL"
)

# What CODEC's NOT NULL says, over the struct p that from_json makes.
REQUIRED_IS_NULL = (
    "p.req is null or (p.st is not null and p.st.x is null) "
    "or coalesce(exists(p.l, e -> e is not null and e.c is null), false) "
    "or coalesce(exists(map_values(p.ms), e -> e is not null and e.c is null), false)"
)

GOOD = [
    '{"req":1}',
    ' {"req" : 1 } \n',
    '{"req":1,"other":{"x":[1,{}]}}',
    '{"req":1,"REQ":"x"}',
    "{'req':1,'s':'it\"s'}",
    '{"req":1,"s":"\\\'"}',
    '{"req":1,"s":null,"st":null,"l":null}',
    '{"req":1,"s":1.50}',
    '{"req":1,"s":{"x":[1, 2]}}',
    '{"req":1,"s":"\\ud800"}',
    '{"req":1,"v":"longer than three"}',
    '{"req":1,"tiny":255}',
    '{"req":1,"big":-9223372036854775808}',
    '{"req":1,"d":NaN,"f":-INF}',
    '{"req":1,"d":"NaN","f":"+Infinity"}',
    '{"req":1,"d":7,"f":1e400}',
    '{"req":1,"dec":999.994}',
    '{"req":1,"dec":"1,23.5"}',
    '{"req":1,"dec":1e-50}',
    '{"req":1,"b":false}',
    '{"req":1,"bin":""}',
    '{"req":1,"bin":"YQ==YWJj"}',
    '{"req":1,"dt":"2020-1-5"}',
    '{"req":1,"dt":"2020-01-05T99:00"}',
    '{"req":1,"dt":"17000"}',
    '{"req":1,"ts":"2020-01-05T10:00:00.123Z"}',
    '{"req":1,"ts":"2020-01-05 10:00:00 Europe/Berlin"}',
    '{"req":1,"ts":"2020-01-05T10:00:00GMT+01:00"}',
    '{"req":1,"ts":"10:30"}',
    '{"req":1,"ts":1577836800}',
    '{"req":1,"ntz":"2020-01-05T10:00:00"}',
    '{"req":1,"a":[1,null],"m":{"k":null}}',
    '{"req":1,"st":{"x":1,"z":2}}',
    '{"req":1,"l":[null,{"c":"x"}],"ms":{"k":null}}',
    '{"req":null,"req":1}',
    '{"req":1,"odd-name":2}',
    f'{{"req":1,"other":{"[" * 900}{"]" * 900}}}',
    f'{{"req":1,"other":{"1" * 1000}}}',
]

BAD = [
    "",
    " \n",
    "null",
    "[]",
    '[{"req":1}]',
    '"x"',
    '{"req":1',
    '{"req":1,}',
    "{req:1}",
    '{"req":01}',
    '{"req":+1}',
    '{"req":1,"other":nan}',
    '{"req":1,"other":INF}',
    '{"req":1,"other":.5}',
    '{"req":1,"other":"a\tb"}',
    '{"req":1,"other":"\\x"}',
    '{"req":1 /* no */}',
    '\ufeff{"req":1}',
    f'{{"req":1,"other":{"[" * 1000}{"]" * 1000}}}',
    f'{{"req":1,"other":{"1" * 1001}}}',
    "{}",
    '{"req":null}',
    '{"Req":1}',
    '{"req":1,"req":"x"}',
    '{"req":"x","req":1}',
    '{"req":"1"}',
    '{"req":1.0}',
    '{"req":2147483648}',
    '{"req":true}',
    '{"req":1,"tiny":256}',
    '{"req":1,"tiny":-129}',
    '{"req":1,"big":9223372036854775808}',
    '{"req":1,"d":"1.5"}',
    '{"req":1,"d":"INF"}',
    '{"req":1,"d":""}',
    '{"req":1,"dec":999.995}',
    '{"req":1,"dec":1000}',
    '{"req":1,"dec":"x"}',
    '{"req":1,"dec":NaN}',
    '{"req":1,"b":"true"}',
    '{"req":1,"bin":"YQ"}',
    '{"req":1,"bin":"YQ = ="}',
    '{"req":1,"dt":"2019-02-29"}',
    '{"req":1,"dt":20200105}',
    '{"req":1,"ts":"2020-01-05T10:00Z"}',
    '{"req":1,"ts":"2020-01-05T10:00:00 Mars/Base"}',
    '{"req":1,"ts":1577836800.5}',
    '{"req":1,"ntz":"2020-01-05T10:00:00Z"}',
    '{"req":1,"ntz":1577836800}',
    '{"req":1,"a":[1,"x"]}',
    '{"req":1,"a":{}}',
    '{"req":1,"m":{"k":"x","k":2}}',
    '{"req":1,"m":[]}',
    '{"req":1,"st":{}}',
    '{"req":1,"st":{"x":null}}',
    '{"req":1,"st":[{"x":1}]}',
    '{"req":1,"l":[{"c":"x"},{}]}',
    '{"req":1,"ms":{"k":{"c":null}}}',
    '{"req":1,"odd-name":"x"}',
]

# Spark stops reading behind the first object. Nothing may get lost unseen, so the codec refuses these; Spark does
# when the object is read as the only element of an array.
TRAILING = ['{"req":1} x', '{"req":1}{"req":2}', '{"req":1}}', '{"req":1},{"req":2}', '{"req":1}\x00']


@pytest.fixture(scope="module")
def refused(spark: SparkSession) -> dict[bytes, tuple[bool, bool]]:
    """For each case: whether Spark refuses it, plain, and as the element of an array."""
    from pyspark.sql import functions as F

    cases = [*(text.encode() for text in (*GOOD, *BAD, *TRAILING)), b'{"req":1,"s":"\xff"}', b"\xff"]
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}
    text = F.col("v").cast("string")
    wrapped = F.concat(F.lit('{"v":['), text, F.lit("]}"))
    element = f"v ARRAY<STRUCT<{CODEC.spark_schema}>>, _bad STRING"
    rows = (
        spark.createDataFrame([(case,) for case in cases], "v binary")
        .coalesce(1)
        .select(
            "v",
            F.is_valid_utf8(text).alias("utf8"),
            F.from_json(text, f"{CODEC.spark_schema}, _bad STRING", options).alias("p"),
            F.from_json(wrapped, element, options).alias("w"),
        )
        .select(
            "v",
            F.expr(f"not utf8 or p is null or p._bad is not null or {REQUIRED_IS_NULL}").alias("plain"),
            F.expr("not utf8 or w is null or w._bad is not null or size(w.v) <> 1").alias("outside"),
            F.expr("try_element_at(w.v, 1)").alias("p"),
        )
        .select("v", "plain", F.expr(f"outside or p is null or {REQUIRED_IS_NULL}").alias("wrapped"))
    )
    return {bytes(row.v): (row.plain, row.wrapped) for row in rows.collect()}


@pytest.mark.parametrize("text", GOOD)
def test_what_spark_reads_is_no_fault(refused: dict[bytes, tuple[bool, bool]], text: str) -> None:
    fault = CODEC.diagnose(text.encode())
    assert (fault and str(fault), refused[text.encode()]) == (None, (False, False))
    assert CODEC.decode(text.encode())["req"] == 1


@pytest.mark.parametrize("text", BAD)
def test_what_spark_refuses_is_a_fault(refused: dict[bytes, tuple[bool, bool]], text: str) -> None:
    assert (CODEC.diagnose(text.encode()) is not None, refused[text.encode()]) == (True, (True, True))


@pytest.mark.parametrize("data", [b'{"req":1,"s":"\xff"}', b"\xff"])
def test_bytes_that_are_not_utf8_are_a_fault(refused: dict[bytes, tuple[bool, bool]], data: bytes) -> None:
    fault = CODEC.diagnose(data)
    assert fault is not None
    assert (fault.kind, refused[data]) == ("not_utf8", (True, True))


@pytest.mark.parametrize("text", TRAILING)
def test_text_after_the_object_is_a_fault_though_spark_alone_drops_it(
    refused: dict[bytes, tuple[bool, bool]], text: str
) -> None:
    fault = CODEC.diagnose(text.encode())
    assert fault is not None
    assert (fault.kind, refused[text.encode()]) == ("not_json", (False, True))
