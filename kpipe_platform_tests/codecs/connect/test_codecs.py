"""ConnectJsonCodec and DebeziumCodec: settings, faults, and Spark's answers, which are those of Python."""

from __future__ import annotations

import base64
import datetime as dt
import json
import pickle
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, JsonCodec, TextCodec, codec_from_config, codec_to_config
from kpipe_platform.codecs.connect.codec import ConnectJsonCodec
from kpipe_platform.codecs.connect.debezium import SOURCE, DebeziumCodec
from kpipe_platform.errors import ConfigError, EncodeFault
from kpipe_platform.spark.columns import parsed

from .events import (
    ANNE,
    CREATE,
    CUSTOMERS,
    DELETE,
    KEY_SCHEMA,
    MESSAGE,
    READ,
    SCHEMA,
    TRUNCATE,
    UPDATE,
    enveloped,
    plain,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = DebeziumCodec(CUSTOMERS)
GOODS = (
    "id BIGINT NOT NULL, price DECIMAL(10,2), made DATE, at TIMESTAMP_NTZ, seen TIMESTAMP, ms TIMESTAMP_MILLIS, "
    "days ARRAY<DATE>"
)
GOOD = {
    "id": 1,
    "price": base64.b64encode(b"\xcf\xc7").decode(),
    "made": -1,
    "at": 1529507596945104,
    "seen": "2019-07-09T02:28:57.123456Z",
    "ms": 1,
    "days": [0, None],
}


@dataclass(frozen=True)
class SlowJsonCodec(Codec):
    """A codec that is no Spark expression."""

    name: ClassVar[str] = "slow_json"
    schema: str = ""

    @property
    def value_type(self) -> T.DataType:
        return JsonCodec(self.schema).value_type

    def _decode(self, data: bytes) -> Any:
        return JsonCodec(self.schema)._decode(data)

    def _encode(self, value: Any) -> bytes:
        return JsonCodec(self.schema, include_nulls=True)._encode(value)


def schema_of(**fields: Any) -> dict[str, Any]:
    row = {"type": "struct", "fields": [{"field": name, **about} for name, about in fields.items()]}
    return {"type": "struct", "fields": [{**row, "field": "after"}, {"type": "string", "field": "op"}]}


def create(**changes: Any) -> dict[str, Any]:
    return {**CREATE, "after": {**GOOD, **changes}}


CASES: list[tuple[Codec, bytes, str | None]] = [
    *(
        (EVENTS, made(event), None)
        for event in (CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE)
        for made in (plain, enveloped)
    ),
    (EVENTS, plain({**DELETE, "before": None}), None),
    (EVENTS, enveloped(CREATE, None), None),
    (EVENTS, b"{}", 'field "op" is missing: this is not a change event of Debezium'),
    (EVENTS, enveloped(None), 'field "op" is missing: this is not a change event of Debezium'),
    (EVENTS, plain({**CREATE, "op": "x"}), "field \"op\": 'x' is not one of c, r, u, d, t, m"),
    (EVENTS, plain({**CREATE, "after": None}), "field \"after\" is missing, but the operation 'c' leaves a row"),
    (EVENTS, plain({**UPDATE, "after": None}), "field \"after\" is missing, but the operation 'u' leaves a row"),
    (EVENTS, plain({**DELETE, "after": ANNE}), "field \"after\" is a row, but the operation is 'd' (delete)"),
    (EVENTS, plain({**CREATE, "after": {"id": 1}}), 'field "after.first_name" is required but missing'),
    (
        EVENTS,
        enveloped({**CREATE, "after": {**ANNE, "id": "x"}}),
        'field "payload.after.id": expected int, found string "x"',
    ),
    (EVENTS, b"[]", "expected a JSON object, found array []"),
    (DebeziumCodec(GOODS), plain(create()), None),
    (DebeziumCodec(GOODS), enveloped(create(), schema_of(at={"name": "io.debezium.time.MicroTimestamp"})), None),
    (
        DebeziumCodec(GOODS),
        enveloped(create(), schema_of(at={"name": "io.debezium.time.Timestamp"})),
        'field "after.at": its schema in the record has io.debezium.time.Timestamp, '
        "but the codec expects io.debezium.time.MicroTimestamp",
    ),
    (
        DebeziumCodec(GOODS),
        enveloped(
            create(), schema_of(price={"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "4"}})
        ),
        'field "after.price": its schema in the record has org.apache.kafka.connect.data.Decimal of scale 4, '
        "but the codec expects org.apache.kafka.connect.data.Decimal of scale 2",
    ),
    (
        DebeziumCodec(GOODS, decimals="string"),
        enveloped(create(price="1.5"), schema_of(price={"name": "org.apache.kafka.connect.data.Decimal"})),
        'field "after.price": its schema in the record has org.apache.kafka.connect.data.Decimal, '
        "but the codec expects no semantic type",
    ),
    (DebeziumCodec(GOODS, decimals="string"), plain(create(price="-123.45")), None),
    (DebeziumCodec(GOODS, decimals="double"), plain(create(price=-123.45)), None),
    (
        DebeziumCodec(GOODS),
        plain(create(days=[2**31 - 1])),
        'field "after.days[0]": 2147483647 days since 1970 is not in the years 1 to 9999 '
        "(declared date of io.debezium.time.Date)",
    ),
    (
        DebeziumCodec(GOODS),
        plain(create(at=9223372036825200000)),
        'field "after.at": 9223372036825200000 units of 1/1000000 s since 1970 is not in the years 1 to 9999 '
        "(declared timestamp_ntz of io.debezium.time.MicroTimestamp)",
    ),
    (DebeziumCodec(GOODS), plain(create(price="!!")), 'field "after.price": expected binary, found string "!!"'),
    (ConnectJsonCodec("id INT NOT NULL"), enveloped({"id": 1}, KEY_SCHEMA), None),
    (ConnectJsonCodec("id INT NOT NULL"), plain({"id": 1}), 'the record has no "payload"'),
    (ConnectJsonCodec("id INT NOT NULL"), enveloped({}, KEY_SCHEMA), 'field "payload.id" is required but missing'),
    (ConnectJsonCodec("id INT NOT NULL", schemas=False), plain({"id": 1}), None),
    (
        ConnectJsonCodec("at TIMESTAMP", schemas=False),
        plain({"at": 10**18}),
        'field "at": 1000000000000000000 units of 1/1000 s since 1970 is not in the years 1 to 9999 '
        "(declared timestamp of org.apache.kafka.connect.data.Timestamp)",
    ),
]


@pytest.mark.parametrize(("codec", "data", "message"), CASES)
def test_why_a_record_does_not_decode(codec: Codec, data: bytes, message: str | None) -> None:
    fault = codec.diagnose(data)
    assert (None if fault is None else fault.message) == message


@pytest.mark.spark
def test_spark_finds_the_same_faults_and_values(spark: SparkSession) -> None:
    for codec in dict.fromkeys(codec for codec, _, _ in CASES):
        cases = [(data, message) for each, data, message in CASES if each == codec]
        frame = spark.createDataFrame([(bytearray(data),) for data, _ in cases] + [(None,)], "data binary")
        frame = frame.select("data", parsed(codec, F.col("data")).alias("parsed"))
        bad = codec.fault(F.col("data"), F.col("parsed"))
        assert bad is not None
        rows = frame.select(bad.alias("bad"), codec.value(F.col("parsed")).alias("value"))
        assert rows.schema["value"].dataType.simpleString() == codec.value_type.simpleString()
        table = rows.toArrow().to_pylist()
        assert [row["bad"] for row in table] == [message is not None for _, message in cases] + [False]
        for row, (data, message) in zip(table, cases, strict=False):
            if message is None:
                assert plain_of(row["value"]) == plain_of(codec.decode(data)), data


def plain_of(value: Any) -> Any:
    """The value without what the JSON codec leaves as text in Python."""
    if isinstance(value, dict):
        return {name: plain_of(one) for name, one in value.items() if name not in ("ms", "snapshot")}
    return value


def test_columns_of_an_event() -> None:
    assert EVENTS.fields.names == ["op", "before", "after", "source", "ts_ms"]
    assert EVENTS.value_type.simpleString().startswith("struct<op:string,before:struct<id:int,first_name:string,")
    assert DebeziumCodec("id INT", source="lsn BIGINT").fields["source"].dataType == T.StructType().add(
        "lsn", T.LongType()
    )
    assert EVENTS.fields["source"].dataType == JsonCodec(SOURCE).fields


@pytest.mark.parametrize("event", [CREATE, UPDATE, DELETE, READ, TRUNCATE])
def test_an_event_leaves_as_it_came(event: dict[str, Any]) -> None:
    decoded = EVENTS.decode(enveloped(event))
    assert EVENTS.decode(EVENTS.encode(decoded)) == decoded


def test_values_leave_in_the_form_of_the_record() -> None:
    value = {
        "id": 1,
        "price": Decimal("-123.45"),
        "made": dt.date(1969, 12, 31),
        "at": dt.datetime.fromisoformat("2018-06-20T15:13:16.945104"),
        "seen": dt.datetime(2019, 7, 9, 2, 28, 57, 123456, tzinfo=dt.timezone.utc),
        "ms": dt.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=dt.timezone.utc),
        "days": [dt.date(1970, 1, 1), None],
    }
    data = DebeziumCodec(GOODS).encode({"op": "c", "after": value})
    assert json.loads(data or b"")["after"] == GOOD


def test_a_plain_record_has_the_schema_of_its_columns() -> None:
    codec = ConnectJsonCodec("id INT NOT NULL, price DECIMAL(10,2), tags MAP<STRING, DATE>")
    data = codec.encode({"id": 1, "price": Decimal("1.5"), "tags": {"a": dt.date(1970, 1, 2)}})
    date = {"type": "int32", "name": "org.apache.kafka.connect.data.Date", "version": 1, "optional": True}
    decimal = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    }
    assert json.loads(data or b"") == {
        "schema": {
            "type": "struct",
            "optional": False,
            "fields": [
                {"type": "int32", "optional": False, "field": "id"},
                {**decimal, "optional": True, "field": "price"},
                {"type": "map", "keys": {"type": "string", "optional": False}, "values": date, "optional": True}
                | {"field": "tags"},
            ],
        },
        "payload": {"id": 1, "price": "AJY=", "tags": {"a": 1}},
    }
    assert codec.diagnose(data or b"") is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "a change event is a dict"),
        ({"op": "c"}, 'field "after" is missing'),
        ({"after": ANNE}, 'field "op" is missing'),
        ({"op": "d", "after": ANNE}, "the operation is 'd'"),
    ],
)
def test_what_is_no_event_is_not_written(value: Any, message: str) -> None:
    with pytest.raises(EncodeFault, match=message):
        EVENTS.encode(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DebeziumCodec("a INT", types={"a": "io.debezium.time.Date"}),
            "column 'a' is int, but .* becomes DATE",
        ),
        (lambda: DebeziumCodec("a DATE", types={"b": "io.debezium.time.Date"}), "there is no column 'b'"),
        (
            lambda: DebeziumCodec("a INT", types={"a": "io.debezium.time.Year"}),
            "leave out a type that needs no conversion",
        ),
        (lambda: DebeziumCodec("a DATE", types={"a": "Date"}), "'a' has the semantic type 'Date', which is unknown"),
        (lambda: DebeziumCodec("a DATE", types=5), "types is 5, which is not a dict"),
        (lambda: DebeziumCodec("a INT", decimals="exact"), "decimals='exact'"),  # type: ignore[arg-type]
        (lambda: DebeziumCodec("a INTT"), "expected a type, found 'INTT'"),
        (lambda: DebeziumCodec(TextCodec()), "this codec has no fields"),
        (lambda: DebeziumCodec(JsonCodec("op STRING")), "the schema has no field 'before'"),
        (lambda: DebeziumCodec(JsonCodec("op STRING, before INT, after INT")), "after that is not a struct"),
        (lambda: ConnectJsonCodec("at TIMESTAMP", types={"at": "io.debezium.time.Date"}), "becomes DATE"),
    ],
)
def test_what_is_no_codec(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "codec",
    [
        EVENTS,
        DebeziumCodec("at TIMESTAMP", types={"at": "io.debezium.time.Timestamp"}, decimals="string"),
        DebeziumCodec(JsonCodec("op STRING, before STRUCT<id: INT>, after STRUCT<id: INT>")),
        ConnectJsonCodec("at TIMESTAMP", types={"at": "io.debezium.time.Timestamp"}, schemas=False),
    ],
)
def test_settings_and_pickles_make_the_same_codec(codec: Codec) -> None:
    copies = [pickle.loads(pickle.dumps(codec)), codec_from_config(json.loads(json.dumps(codec_to_config(codec))))]
    for copy in copies:
        assert (copy, hash(copy), copy.fields) == (codec, hash(codec), codec.fields)


INNER = (
    "before STRUCT<id: INT, at: BIGINT>, after STRUCT<id: INT NOT NULL, at: BIGINT>, "
    "source STRUCT<ts_ms: BIGINT>, op STRING, ts_ms BIGINT"
)


@pytest.mark.spark
@pytest.mark.parametrize("inner", [JsonCodec(INNER), SlowJsonCodec(INNER)])
def test_another_codec_may_decode_the_event(spark: SparkSession, inner: Codec) -> None:
    codec = DebeziumCodec(inner, types={"at": "io.debezium.time.MicroTimestamp"})
    assert codec.value_type.simpleString() == (
        "struct<op:string,before:struct<id:int,at:timestamp_ntz>,after:struct<id:int,at:timestamp_ntz>,"
        "source:struct<ts_ms:bigint>,ts_ms:bigint>"
    )
    events = [
        {"op": "c", "after": {"id": 1, "at": -1}, "source": {"ts_ms": 5}},
        {"op": "c", "after": {"id": 1, "at": 2**62}},
        {"op": "c"},
        {},
    ]
    frame = spark.createDataFrame([(bytearray(plain(event)),) for event in events], "data binary")
    frame = frame.select("data", parsed(codec, F.col("data")).alias("parsed"))
    bad = codec.fault(F.col("data"), F.col("parsed"))
    assert bad is not None
    rows = frame.select(bad.alias("bad"), codec.value(F.col("parsed")).alias("value")).toArrow().to_pylist()
    assert [row["bad"] for row in rows] == [False, True, True, True]
    assert rows[0]["value"]["after"] == {"id": 1, "at": dt.datetime.fromisoformat("1969-12-31T23:59:59.999999")}
    assert rows[0]["value"] == codec.decode(plain(events[0])) | {"ts_ms": None}
    assert codec.decode(codec.encode(rows[0]["value"])) == codec.decode(plain(events[0]))
    with pytest.raises(ConfigError, match="'id' is int in the records, which is not the form of"):
        DebeziumCodec(inner, types={"id": "io.debezium.time.Timestamp"})


def test_an_embedded_schema_of_the_documentation_has_no_conflict() -> None:
    assert EVENTS.diagnose(enveloped(CREATE, SCHEMA)) is None
