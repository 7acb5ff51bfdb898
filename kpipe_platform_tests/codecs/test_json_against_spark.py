"""JsonCodec.diagnose says what the decoder on Spark says, case by case, in one Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import hypothesis
import hypothesis.strategies as st
import pytest

from kpipe_platform.codecs import JsonCodec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CODEC = JsonCodec(
    "tiny TINYINT, i INT, big BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(5,2), b BOOLEAN, s STRING, v VARCHAR(3), "
    "bin BINARY, dt DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, a ARRAY<INT>, m MAP<STRING, INT>, "
    "st STRUCT<x: INT NOT NULL, y: STRING>, l ARRAY<STRUCT<c: STRING NOT NULL>>, "
    "ms MAP<STRING, STRUCT<c: STRING NOT NULL>>, `odd-name` INT, `req` INT NOT NULL, "
    "deep ARRAY<STRUCT<m: MAP<STRING, STRUCT<dec: DECIMAL(10,2), tiny: TINYINT, ts: TIMESTAMP, v: CHAR(2)>>>>"
)

GOOD = [
    '{"req":1,"s":"\\ud83d\\ude00 \\\\ud800"}',
    '{"req":1,"v":"\\ud83d\\ude00bc"}',
    '{"req":1,"v":123}',
    '{"req":1,"v":{}}',
    '{"req":1,"tiny":127}',
    '{"req":1,"tiny":-128}',
    '{"req":1,"dec":999.990}',
    '{"req":1,"dec":123e-2,"s":"0.12345"}',
    '{"req":1,"dec":0.000,"d":0.12345}',
    '{"req":1,"ts":9223372036854,"big":9223372036854775807}',
    '{"req":1,"ts":-9223372036854}',
    '{"req":1,"m":{"k":1,"K":2}}',
    '{"req":1,"l":null,"ms":null,"m":null}',
    f'{{"req":1,"other":{"[" * 199}{"]" * 199}}}',
    f"{{'req':1,'other':{'[' * 199}{']' * 199}}}",
    '{"req":1}',
    ' {"req" : 1 } \n',
    '{"req":1,"other":{"x":[1,{}]}}',
    '{"req":1,"REQ":"x"}',
    "{'req':1,'s':'it\"s'}",
    '{"req":1,"s":"\\\'"}',
    '{"req":1,"s":null,"st":null,"l":null}',
    '{"req":1,"s":1.50}',
    '{"req":1,"s":{"x":[1, 2]}}',
    '{"req":1,"big":-9223372036854775808}',
    '{"req":1,"d":NaN,"f":-INF}',
    '{"req":1,"d":"NaN","f":"+Infinity"}',
    '{"req":1,"d":7,"f":1e400}',
    '{"req":1,"dec":"1,23.5"}',
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
    f'{{"req":1,"other":{"1" * 1000}}}',
]

# Spark reads these, and changes what the type does not hold.
CHANGED = [
    '{"req":1,"s":"\\ud800"}',
    '{"req":1,"other":"\\uDC00\\ud800"}',
    '{"req":1,"s":"\\\\ud83d\\ude00"}',
    '{"req":1,"v":"longer than three"}',
    '{"req":1,"v":1.25}',
    '{"req":1,"v":[1,2]}',
    '{"req":1,"tiny":128}',
    '{"req":1,"tiny":255}',
    '{"req":1,"dec":999.994}',
    '{"req":1,"dec":1.239}',
    '{"req":1,"dec":"1,2.3,99"}',
    '{"req":1,"dec":1e-50}',
    '{"req":1,"ts":9223372036855}',
    '{"req":1,"ts":1767225600000000}',
    '{"req":1,"ts":-1767225600000000000}',
    '{"req":1,"m":{"k":1,"\\u006b":2}}',
    '{"req":1,"deep":[{"m":{"k":{"dec":1.239}}}]}',
    '{"req":1,"deep":[null,{"m":{"k":null,"l":{"tiny":200}}}]}',
    '{"req":1,"deep":[{"m":{"l":{"ts":1767225600000000}}}]}',
    '{"req":1,"deep":[{"m":{"l":{"v":"longer"}}}]}',
]

BAD = [
    *CHANGED,
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
    f'{{"req":1,"other":{"[" * 200}{"]" * 200}}}',
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

# Spark stops reading behind the first object, and an object is read inside of another. Nothing may get lost unseen, and
# nothing pass for what it is not.
TRAILING = [
    '{"req":1} x',
    '{"req":1}{"req":2}',
    '{"req":1}}',
    '{"req":1},{"req":2}',
    '{"req":1},',
    '{"req":1},null',
    '{"req":1}\x00',
    '{"req":1}]}',
    '{"req":1}]} x',
    '{"req":1}]}]}',
    '{"req":1}],"v":[{"req":2}',
    '{"req":1}],"x":[{"req":2}',
    '{"req":1}],"_kpipe_corrupt":"x","v":[{"req":2}',
    '{"req":1},{"x":true}]}',
    '{"req":1,"x":[1}]',
]


def refused_by_spark(spark: SparkSession, cases: Sequence[bytes]) -> list[bool]:
    """Whether the decoder refuses each of these values."""
    from pyspark.sql import functions as F

    from kpipe_platform.spark.columns import is_fault, parsed

    rows = spark.createDataFrame(list(enumerate(cases)), "n int, v binary").coalesce(1)
    rows = rows.select("n", "v", parsed(CODEC, F.col("v")).alias("p"))
    found = rows.select("n", is_fault(CODEC, F.col("v"), F.col("p")).alias("bad")).collect()
    return [row.bad for row in sorted(found)]


@pytest.fixture(scope="module")
def refused(spark: SparkSession) -> dict[bytes, bool]:
    cases = [*(text.encode() for text in (*GOOD, *BAD, *TRAILING)), b'{"req":1,"s":"\xff"}', b"\xff"]
    return dict(zip(cases, refused_by_spark(spark, cases), strict=True))


@pytest.mark.parametrize("text", GOOD)
def test_what_spark_reads_is_no_fault(refused: dict[bytes, bool], text: str) -> None:
    fault = CODEC.diagnose(text.encode())
    assert (fault and str(fault), refused[text.encode()]) == (None, False)
    assert CODEC.decode(text.encode())["req"] == 1


@pytest.mark.parametrize("text", BAD)
def test_what_spark_refuses_or_changes_is_a_fault(refused: dict[bytes, bool], text: str) -> None:
    assert (CODEC.diagnose(text.encode()) is not None, refused[text.encode()]) == (True, True)


@pytest.mark.parametrize("data", [b'{"req":1,"s":"\xff"}', b"\xff"])
def test_bytes_that_are_not_utf8_are_a_fault(refused: dict[bytes, bool], data: bytes) -> None:
    fault = CODEC.diagnose(data)
    assert fault is not None
    assert (fault.kind, refused[data]) == ("not_utf8", True)


@pytest.mark.parametrize("text", TRAILING)
def test_text_after_the_object_is_a_fault_though_spark_alone_drops_it(refused: dict[bytes, bool], text: str) -> None:
    fault = CODEC.diagnose(text.encode())
    assert fault is not None
    assert (fault.kind, refused[text.encode()]) == ("not_json", True)


_TEXTS = st.sampled_from([text.encode() for text in (*GOOD, *BAD, *TRAILING) if len(text) < 200])
_PIECES = st.sampled_from(
    [
        *(
            b'{"req":1}',
            b'{"req":1',
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b'"',
            b"'",
            b"\\",
            b" ",
            b"null",
            b"1",
            b"-1.5e3",
        ),
        *(b'"req":', b'"v":', b'"m":{"k":1}', b'"l":[{"c":"x"}]', b'"st":{"x":1}', b'"dec":1.5', b'"ts":1', b"\\ud800"),
        *(b'],"x":[', b"]}", b"\xff", b"\x00", b'"_kpipe_corrupt":"x"', b"true", b"NaN", b"-1.5e3"),
    ]
)


@st.composite
def _altered(draw: st.DrawFn) -> bytes:
    """One of the texts above, with a piece put in or a few bytes taken out."""
    text = draw(_TEXTS)
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 4)))
    return text[:start] + b"".join(draw(st.lists(_PIECES, max_size=3))) + text[end:]


_ANY = st.one_of(st.binary(max_size=30), st.lists(_PIECES, max_size=12).map(b"".join), _altered(), _altered())


# A smaller example would be found by hundreds of Spark jobs.
@hypothesis.settings(
    max_examples=5, suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate]
)
@hypothesis.given(st.lists(_ANY, min_size=200, max_size=200))
def test_any_bytes_are_one_object_or_a_fault_to_both(spark: SparkSession, cases: list[bytes]) -> None:
    assert refused_by_spark(spark, cases) == [CODEC.diagnose(case) is not None for case in cases]
