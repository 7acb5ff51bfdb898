"""JsonCodec.diagnose says what the decoder on Spark says, case by case, in one Spark session."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import pytest
from pyspark.sql import types as T

from kpipe_platform.codecs import DecodeFault, JsonCodec

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
    '{"req":1,"d":1e5000,"dec":0.0}',
    '{"req":1,"dec":0E-10,"s":"3e1234"}',
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
    '{"req":1,"dec":0E-10,"d":1e5000}',  # the two cannot be told apart
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


def decoded_by_spark(spark: SparkSession, cases: Sequence[bytes], codec: JsonCodec = CODEC) -> list[str | None]:
    """What the decoder makes of each of these values, as JSON; None for what it refuses."""
    from pyspark.sql import functions as F

    from kpipe_platform.spark.columns import parsed

    rows = spark.createDataFrame(list(enumerate(cases)), "n int, v binary").coalesce(1)
    rows = rows.select("n", "v", parsed(codec, F.col("v")).alias("p"))
    value = F.to_json(codec.value(F.col("p")), {"ignoreNullFields": "false"})
    found = rows.select("n", F.when(~codec.fault(F.col("v"), F.col("p")), value).alias("value")).collect()
    return [row.value for row in sorted(found)]


def refused_by_spark(spark: SparkSession, cases: Sequence[bytes]) -> list[bool]:
    """Whether the decoder refuses each of these values."""
    return [value is None for value in decoded_by_spark(spark, cases)]


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


_TEXTS = [text.encode() for text in (*GOOD, *BAD, *TRAILING) if len(text) < 200]
_PIECES = [
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
        b"\n",
        b"\x0b",
        b"\xc2\xa0",
    ),
    *(
        b'"req":',
        b'"v":',
        b'"m":{"k":1}',
        b'"l":[{"c":"x"}]',
        b'"st":{"x":1}',
        b'"dec":1.5',
        b'"ts":1',
        b"req:",
        b"'req':",
    ),
    *(
        b"null",
        b"true",
        b"NaN",
        b"-Infinity",
        b"+INF",
        b"1",
        b"-1.5e3",
        b"007",
        b"+1",
        b".5",
        b"5.",
        b"1e",
        b"0x1",
        b"--1",
    ),
    *(
        b'],"x":[',
        b"]}",
        b"}}",
        b'"_kpipe_corrupt":"x"',
        b"/* */",
        b"// x\n",
        b"# x\n",
        b"<!-- -->",
        b"\\ud800",
        b"\\u0022",
    ),
    *(
        b"\xff",
        b"\x00",
        b"\x1e",
        b"\x7f",
        b"\xef\xbb\xbf",
        b"\xfe\xff",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf4\x90\x80\x80",
        b"\xe2\x80\xa8",
    ),
]


# JSON texts of each type: what fits, what nearly does, and the same in the odd forms that parsers differ about.
_WHOLE = [
    *(str(sign * (2**bits + more)) for bits in (7, 8, 15, 31, 63) for sign in (1, -1) for more in (-1, 0, 1)),
    *("0", "-0", "1e2", "1.0", "1E0", "007", "+1", "-", '"1"', "0x10", "1_000", "1L", "\u0663", "1" * 1001, "1" * 40),
]
_FLOATING = [
    *("1.5", "-0.0", "1e400", "-1e-400", "1e-45", "3.5e38", "1.7976931348623159e308", "2E+2", "1e0005", "-1.5e+00"),
    *("0e99999999999999999999", "1e99999999999999999999", "1e-99999999999999999999", "1.", "1e", "1e+", ".5", "--1"),
    *("NaN", "-NaN", "+NaN", "nan", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF", "Inf", "NaN1", "NULL"),
    *('"NaN"', '"Infinity"', '"+INF"', '"-INF"', '"INF"', '"nan"', '"1.5"', '"NaN "', "'NaN'", '"\\u004eaN"', '""'),
    *(f"1.{'5' * 998}", f"1.{'5' * 999}", f"1.{'5' * 996}e5", f"1.{'5' * 998}e5", "1." + "0" * 40 + "1"),
]
_DECIMAL = [
    *("1.23", "1.230", "1.239", "999.99", "-999.99", "999.994", "999.995", "1000", "1e2", "1.5e-2", "12e-3", "0E-10"),
    *(f"1.23{'0' * 40}", f"1.23{'0' * 40}1", "1.234567890123456789e0", "1.2e1", "0e9", "1e-400", "1e10", "1E+2"),
    *("0e-2147483649", "0e2147483648", "1e-2147483648", "1e2147483647", "0e-99999999999999999999", "NaN", "-Infinity"),
    *(
        '"1.23"',
        '"1,2.3"',
        '"1.2,3"',
        '"1.23,9"',
        '""',
        '","',
        '",1"',
        '" 1"',
        '"1 "',
        '"+1"',
        '"-1.5"',
        '".5"',
        '"5."',
        '"."',
    ),
    *(
        '"1.23\\u0039"',
        '"1.2\\u00339"',
        '"1\\u002e239"',
        '"1239\\u0065-3"',
        '"1,\\u002c.\\u0032"',
        '"\u0663"',
        '"1.23\u0663"',
    ),
    *(
        '"1e0000000001"',
        '"1e-0000000001"',
        '"1e1,0"',
        '"1,e,1"',
        '"1.\U0001d7cf"',
        '"0x1"',
        '"1f"',
        '"NaN"',
        '"1e"',
        "'1.5'",
    ),
]
_TEXT = [
    *(
        '""',
        '"x"',
        "'it\"s'",
        '"it\'s"',
        '"\\\'"',
        '"\\/\\b\\f\\n"',
        '"\\u0000"',
        '"\x7f"',
        '"\u2028"',
        '"a\tb"',
        '"\\x"',
        '"\\u12"',
    ),
    *(
        '"\\ud83d\\ude00"',
        '"\\ud83d"',
        '"\\ude00\\ud83d"',
        '"\\\\ud83d"',
        '"\\uD83D\\uDE00\\uD83D"',
        '"\U0001f600ab"',
        '"\U0001f600abc"',
    ),
    *(
        "1",
        "1.50",
        "true",
        "null",
        "[1, 2]",
        '{"a": [1.0]}',
        "1e400",
        "NaN",
        '"abcd"',
        "12345678901234567890",
        "x",
        '"\\U0041"',
    ),
    *(f"'{'[' * 300}'", f'"{"{" * 300}"', "'\"'", "'\\u0027'"),
]
_BINARY = [
    '"YQ=="',
    '"YQ"',
    '"Y Q=="',
    '"YWJj\\n"',
    '" YQ=="',
    '"YQ==\\r\\nYWJj"',
    '"===="',
    '"-_-_"',
    '"\\u0059Q=="',
    '"YR=="',
    "1",
]
_DATE = [
    *(
        '"2020-01-05"',
        '"2020-1-5"',
        '"2020"',
        '"2019-02-29"',
        '"+2020-01-05"',
        '"-0001-01-05"',
        '"12000-01-01"',
        '"17000"',
    ),
    *(
        '"2020-01-05T10:00:00Z"',
        '"2020-01-05 x"',
        '" 2020-01-05 "',
        '"2020-01-05GMT"',
        '"\\u0032020-01-05"',
        '"20200105"',
        '""',
    ),
]
_MOMENT = [
    *_DATE,
    *(
        '"2020-01-05T10:00:00.123456Z"',
        '"2020-01-05T10:00:00.1234567Z"',
        '"2020-01-05T24:00:00Z"',
        '"2020-01-05T10:00:00"',
    ),
    *(
        '"2020-01-05 10:00:00+01:00"',
        '"2020-01-05T10:00:00 Europe/Berlin"',
        '"2020-01-05T10:00:00+18:01"',
        '"2020-01-05T10Z"',
    ),
    *(
        "0",
        "1577836800",
        "-1",
        "1577836800.5",
        "1767225600000",
        "9223372036854",
        "9223372036855",
        "1767225600000000",
        "1e9",
    ),
]
_OF: dict[type[T.DataType], list[str]] = {
    **dict.fromkeys((T.ByteType, T.ShortType, T.IntegerType, T.LongType), _WHOLE),
    **dict.fromkeys((T.FloatType, T.DoubleType), _FLOATING),
    **dict.fromkeys((T.StringType, T.VarcharType, T.CharType), _TEXT),
    T.DecimalType: _DECIMAL,
    T.BooleanType: ["true", "false", "True", "1", '"true"', "tru", "truex"],
    T.BinaryType: _BINARY,
    T.DateType: _DATE,
    T.TimestampType: _MOMENT,
    T.TimestampNTZType: _MOMENT,
}
_ODD = ["null", "{}", "[]", '"x"', "1", f"{'[' * 150}{']' * 150}", f"{'[' * 250}{']' * 250}"]
_SPACE = [" ", "\n\t\r ", "\x0c", "\xa0", "\0", "/**/", "\ufeff"]


class NearlyJson:
    """Makes records of a schema, or nearly so.

    Args:
        random: What decides.
        odd: How often something is odd: a value that does not fit, a name without quotes, or twice, white space.
    """

    def __init__(self, random: Random, odd: float) -> None:
        self.random = random
        self.odd = odd

    def text(self, kind: T.DataType) -> str:
        """JSON of a type."""
        if self._is_odd():
            return self.random.choice(_ODD)
        if isinstance(kind, T.StructType):
            return self.object([(field.name, field.dataType, not field.nullable) for field in kind])
        if isinstance(kind, T.ArrayType):
            return f"[{','.join(self.text(kind.elementType) for _ in range(self.random.randrange(3)))}]"
        if isinstance(kind, T.MapType):
            return self.object(
                [(name, kind.valueType, False) for name in ("k", "\\u006b" if self._is_odd() else "l", "K")]
            )
        return self.random.choice(_OF[type(kind)] if self._is_odd() else _fitting(kind))

    def object(self, fields: list[tuple[str, T.DataType, bool]]) -> str:
        """An object with some of the fields, in any order."""
        chosen = self.random.sample(fields, self.random.randrange(min(len(fields), 5)))
        chosen += [field for field in fields if field[2] and field not in chosen and not self._is_odd()]
        chosen += [self.random.choice(fields)] if self._is_odd() else []
        self.random.shuffle(chosen)
        parts = []
        for name, kind, _ in chosen:
            quote = self.random.choice(["'", ""]) if self._is_odd() else '"'
            parts.append(f"{quote}{name}{quote}{self._space()}:{self._space()}{self.text(kind)}")
        return f"{{{self._space()}{f',{self._space()}'.join(parts)}{self._space()}}}"

    def altered(self, text: bytes) -> bytes:
        """The text with pieces put in or a few bytes taken out."""
        start = self.random.randint(0, len(text))
        pieces = self.random.choices(_PIECES, k=self.random.randrange(3))
        return text[:start] + b"".join(pieces) + text[start + self.random.randrange(4) :]

    def _space(self) -> str:
        return self.random.choice(_SPACE) if self._is_odd() else ""

    def _is_odd(self) -> bool:
        return self.random.random() < self.odd


@cache
def _fitting(kind: T.DataType) -> list[str]:
    codec = JsonCodec(f"x {kind.simpleString()}")
    return [text for text in _OF[type(kind)] if codec.diagnose(f'{{"x":{text}}}'.encode()) is None]


def nearly_json(random: Random) -> bytes:
    """Any bytes at all, of many kinds."""
    how = random.randrange(8)
    if how == 0:
        return random.randbytes(random.randrange(30))
    if how == 1:
        return b"".join(random.choices(_PIECES, k=random.randrange(12)))
    make = NearlyJson(random, random.choice([0.0, 0.02, 0.2]))
    record = random.choice(_TEXTS) if how == 2 else make.text(CODEC.fields).encode()
    return make.altered(record) if how < 5 else record


def _same(kind: T.DataType, ours: Any, sparks: Any) -> bool:
    """Whether a value that the codec decodes is the one that Spark has, as its JSON."""
    if ours is None or sparks is None:
        return ours is sparks
    if isinstance(kind, T.StructType):
        return all(_same(field.dataType, ours[field.name], sparks[field.name]) for field in kind)
    if isinstance(kind, T.ArrayType):
        return len(ours) == len(sparks) and all(map(partial(_same, kind.elementType), ours, sparks))
    if isinstance(kind, T.MapType):
        return ours.keys() == sparks.keys() and all(_same(kind.valueType, ours[name], sparks[name]) for name in ours)
    if isinstance(kind, T.FloatType | T.DoubleType):
        number = float(str(ours).replace("INF", "Infinity"))
        theirs = float(sparks)
        if isinstance(kind, T.FloatType):
            number, theirs = _as_float32(number), _as_float32(theirs)
        return number == theirs or (math.isnan(number) and math.isnan(theirs))
    if isinstance(kind, T.DecimalType):
        exact = Decimal(str(ours).replace(",", ""))
        return exact == Decimal(sparks) or float(exact) == float(sparks)
    if isinstance(kind, T.BinaryType):
        groups = re.findall("....", "".join(ours.split()))
        return b"".join(map(base64.b64decode, groups)) == base64.b64decode(sparks)
    if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        return isinstance(sparks, str)
    if isinstance(kind, T.StringType | T.VarcharType | T.CharType):
        return ours == sparks if isinstance(ours, str) else isinstance(sparks, str)
    return type(ours) is type(sparks) and ours == sparks


def _as_float32(number: float) -> float:
    try:
        found: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        found = math.copysign(math.inf, number)
    return found


def _reason(decode: Callable[[bytes], object], data: bytes) -> str | None:
    try:
        found = decode(data)
    except DecodeFault as fault:
        found = fault
    return str(found) if isinstance(found, DecodeFault) else None


def check_agreement(spark: SparkSession, cases: Sequence[bytes], codec: JsonCodec = CODEC) -> list[bytes]:
    """Each of these is one value or one fault to all who decode, and the same one; gives those that are values."""
    good = []
    for case, sparks in zip(cases, decoded_by_spark(spark, cases, codec), strict=True):
        reason = _reason(codec.diagnose, case)
        assert (case, reason is None) == (case, sparks is not None), (reason, sparks)
        assert (case, _reason(codec.decode, case)) == (case, reason)
        if sparks is not None:
            value = json.loads(sparks, parse_float=Decimal)
            assert _same(codec.fields, codec.decode(case), value), (case, sparks)
            good.append(case)
    return good


# A DECIMAL also beside nothing that makes the decoder look closer.
@pytest.mark.parametrize("codec", [CODEC, JsonCodec("req INT, dec DECIMAL(5,2)")], ids=["all", "decimal"])
def test_every_odd_value_of_each_type_alone(spark: SparkSession, codec: JsonCodec) -> None:
    cases = [
        f'{{"req":1,"{field.name}":{text}}}'.encode()
        for field in codec.fields
        if type(field.dataType) in _OF
        for text in (*_OF[type(field.dataType)], *_ODD)
    ]
    good = check_agreement(spark, cases, codec)
    assert len(cases) / 5 < len(good) < len(cases) * 4 / 5


def test_a_name_that_is_too_long_to_spark_is_a_fault(spark: SparkSession) -> None:
    names = ["n" * 50_000, "n" * 50_001, "\N{GRINNING FACE}" * 25_001, "\\u0041" * 50_001]
    cases = [f'{{"req":1,"{name}":1}}'.encode() for name in names]
    assert check_agreement(spark, cases) == cases[:1]
    assert "a name of more than 50,000 characters at line 1, column 10" in str(CODEC.diagnose(cases[1]))


# A smaller example would be found by hundreds of Spark jobs.
@hypothesis.settings(
    max_examples=5, suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate]
)
@hypothesis.given(st.randoms(use_true_random=True))
def test_any_bytes_are_one_object_or_a_fault_to_all_who_decode(spark: SparkSession, random: Random) -> None:
    cases = [nearly_json(random) for _ in range(1000)]
    assert len(check_agreement(spark, cases)) > 150
