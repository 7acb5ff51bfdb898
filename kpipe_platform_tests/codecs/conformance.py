"""A case of the conformance test for each codec. A new codec gets its case here."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from kpipe_platform import (
    ConnectJsonCodec,
    DebeziumCodec,
    JsonCodec,
    JsonSchemaCodec,
    ProtobufCodec,
    RawCodec,
    TextCodec,
)
from kpipe_platform.testing.codecs import CodecCase

from .careless import LongCodec, TypedCodec

_ORDER_SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "note": {"type": "string", "maxLength": 5},
        "legs": {"type": "array", "items": {"type": "object", "properties": {"code": {"enum": ["EWR", "JFK"]}}}},
    },
}
_ROW = {"id": 1, "name": "Anne", "paid": Decimal("-1.50"), "day": dt.date(1969, 12, 31)}
_CHANGE = {"op": "c", "before": None, "after": _ROW, "source": None, "ts_ms": 1}
_PROTOBUF = """
syntax = "proto3";
package shop;
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum State { NEW = 0; PAID = 1; }
message Order {
  uint64 id = 1; optional string note = 2; google.protobuf.Timestamp at = 3; google.protobuf.Duration took = 4;
  State state = 5; repeated Line lines = 6; map<string, int32> tags = 7;
  oneof paid { int32 cash = 8; string card = 9; }
  google.protobuf.DoubleValue weight = 10; bytes data = 11;
  message Line { string sku = 1; uint32 pieces = 2; }
}
"""
_NO_FIELDS = dict.fromkeys(("id", "note", "at", "took", "state", "lines", "tags", "cash", "card", "weight", "data"))
_DELETED = {"op": "d", "before": dict.fromkeys(_ROW) | {"id": 1}, "after": None, "source": None, "ts_ms": None}
_TRUNCATED = {**dict.fromkeys(_CHANGE), "op": "t"}

CASES: dict[str, CodecCase] = {
    "raw": CodecCase(
        RawCodec(),
        values=[b"one", b"", b"\x00\xff", bytes(range(256))],
        not_encodable=["text", 1, {"a": 1}],
    ),
    "text": CodecCase(
        TextCodec(),
        values=["one", "", "äé中\N{GRINNING FACE}", "two\nlines\t\x00"],
        faults={b"\xff": "not_utf8", b"ok \xc3": "not_utf8", b"\xed\xa0\x80": "not_utf8"},
        not_encodable=[b"bytes", 1, "\ud800"],
    ),
    "json": CodecCase(
        JsonCodec("id BIGINT NOT NULL, note STRING, legs ARRAY<STRUCT<code: STRING NOT NULL>>, m MAP<STRING, INT>"),
        values=[
            {"id": 1, "note": "one", "legs": [{"code": "EWR"}], "m": {"a": 1}},
            {"id": 2**63 - 1, "note": "äé中\n", "legs": [], "m": {}},
            {"id": -1, "note": None, "legs": None, "m": None},
        ],
        faults={
            b"": "empty",
            b"\xff": "not_utf8",
            b"{": "not_json",
            b"[1]": "not_an_object",
            b'{"note":"x"}': "missing_field",
            b'{"id":null}': "null_field",
            b'{"id":"1"}': "wrong_type",
            b'{"id":1} x': "not_json",
        },
        not_encodable=[{"id": 1, "note": "\ud800"}, {"id": 1, "note": object()}],
        lenient={b' {"more":1,"id":5} ': {"id": 5, "note": None, "legs": None, "m": None}},
    ),
    "json_schema": CodecCase(
        JsonSchemaCodec(schema=_ORDER_SCHEMA, framing="none"),
        values=[
            {"id": 1, "note": "one", "legs": [{"code": "EWR"}]},
            {"id": 2**63 - 1, "note": "äé中\n", "legs": []},
            {"id": 0, "note": None, "legs": None},
        ],
        faults={
            b"": "empty",
            b"\xff": "not_utf8",
            b"{": "not_json",
            b"[1]": "not_an_object",
            b"{}": "schema_violation",
            b'{"id":-1}': "schema_violation",
            b'{"id":1,"legs":[{"code":"LAX"}]}': "schema_violation",
            b'{"id":1e30}': "wrong_type",
        },
        not_encodable=[{"id": -1}, {"note": "x"}, {"id": 1, "note": "\ud800"}],
        misfits=[{"id": -1, "note": None, "legs": None}, {"id": 1, "note": "longer", "legs": None}],
        lenient={b' {"more":1,"id":5} ': {"id": 5, "note": None, "legs": None}},
    ),
    "connect_json": CodecCase(
        ConnectJsonCodec("id BIGINT NOT NULL, price DECIMAL(38,2), at TIMESTAMP_NTZ, days ARRAY<DATE>"),
        values=[
            {
                "id": 1,
                "price": Decimal("-123456789012345678901234567890123456.78"),
                "at": dt.datetime.fromisoformat("9999-12-31T23:59:59.999"),
                "days": [dt.date(1, 1, 1), None],
            },
            {"id": 2, "price": None, "at": None, "days": None},
        ],
        faults={
            b"": "empty",
            b'{"id":1}': "null_field",
            b'{"payload":{}}': "missing_field",
            b'{"payload":{"id":1,"at":253402300800000}}': "wrong_type",
            b'{"payload":{"id":1,"price":""}}': "wrong_type",
        },
        not_encodable=[{"id": 1, "price": Decimal("0.001")}, {"id": 1, "at": "2020-01-01"}],
    ),
    "debezium": CodecCase(
        DebeziumCodec("id BIGINT NOT NULL, name STRING, paid DECIMAL(9,2), day DATE", source="ts_ms BIGINT"),
        values=[
            _CHANGE,
            {**_CHANGE, "op": "u", "before": {**_ROW, "name": None}, "source": {"ts_ms": 5}},
            _DELETED,
            _TRUNCATED,
        ],
        removing=[_DELETED, _TRUNCATED],
        faults={
            b"": "empty",
            b"{}": "missing_field",
            b'{"op":"x"}': "wrong_type",
            b'{"op":"c"}': "missing_field",
            b'{"op":"d","after":{"id":1}}': "wrong_type",
            b'{"op":"r","after":{"id":1,"day":2932897}}': "wrong_type",
        },
        not_encodable=[{"op": "c"}, 5],
        lenient={b'{"schema":null,"payload":{"op":"t"}}': _TRUNCATED},
    ),
    "long": CodecCase(
        LongCodec(),
        values=[1, 0, -(2**63), 2**63 - 1],
        faults={b"": "unreadable", b"1234567": "unreadable", b"123456789": "unreadable"},
        not_encodable=["text", 2**63],
    ),
    "typed": CodecCase(
        TypedCodec(),
        values=[
            {
                "price": Decimal("12345678901234567890.123456789012345678"),
                "at": dt.datetime(2026, 1, 5, 10, 0, 0, 123456, tzinfo=dt.timezone.utc),
                "local": dt.datetime.fromisoformat("2026-01-05T10:00:00.000001"),
                "day": dt.date(1582, 10, 4),
                "data": b"\x00\xff",
                "legs": [{"code": "EWR", "stops": [1, None]}, {"code": "JFK", "stops": None}],
                "tags": {"a": 1, "": None},
                "ratio": 0.5,
            },
            {
                "price": Decimal("-0.000000000000000001"),
                "at": dt.datetime(1965, 1, 5, 10, 0, 0, 1, tzinfo=dt.timezone.utc),
                "local": dt.datetime.fromisoformat("0001-01-02T00:00:00"),
                "day": dt.date(9999, 12, 31),
                "data": b"",
                "legs": [],
                "tags": {},
                "ratio": -0.25,
            },
            {
                "price": Decimal("0E-18"),
                "at": dt.datetime(9999, 12, 30, tzinfo=dt.timezone.utc),
                **dict.fromkeys(("local", "day", "data", "legs", "tags", "ratio")),
            },
        ],
        faults={
            b"": "unreadable",
            b"{}": "unreadable",
            b"[]": "unreadable",
            b"null": "unreadable",
        },
        not_encodable=["text", {}],
    ),
    "protobuf": CodecCase(
        ProtobufCodec(schema=_PROTOBUF, message="shop.Order", framing="none"),
        values=[
            {
                "id": 2**64 - 1,
                "note": "äé中",
                "at": dt.datetime(1965, 1, 5, 10, 0, 0, 1, tzinfo=dt.timezone.utc),
                "took": dt.timedelta(days=-1, microseconds=1),
                "state": "PAID",
                "lines": [{"sku": "a", "pieces": 2**32 - 1}, {"sku": "", "pieces": 0}],
                "tags": {"a": 1},
                "cash": None,
                "card": "",
                "weight": 0.5,
                "data": b"\x00\xff",
            },
            {
                "id": 0,
                "note": None,
                "at": None,
                "took": None,
                "state": "7",
                "lines": [],
                "tags": {},
                "cash": -1,
                "card": None,
                "weight": None,
                "data": b"",
            },
        ],
        faults={
            b"\x12\x05ab": "not_protobuf",
            b"\x12\x01\xff": "not_protobuf",
            b"\x1a\x02\x10\x05\x1a": "not_protobuf",
            b"\x1a\x0b\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01": "out_of_range",
            b"\x00": "not_protobuf",
        },
        not_encodable=["text", {"other": 1}, {"id": "x"}, {"note": "\ud800"}, {"lines": [None]}, {"state": "NONE"}],
        misfits=[{**_NO_FIELDS, "id": -1}, {**_NO_FIELDS, "cash": 1, "card": ""}, {**_NO_FIELDS, "tags": {"a": None}}],
        lenient={b"": {**_NO_FIELDS, "id": 0, "state": "NEW", "lines": [], "tags": {}, "data": b""}},
    ),
}
