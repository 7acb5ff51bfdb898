"""A case of the conformance test for each codec. A new codec gets its case here."""

from __future__ import annotations

import datetime as dt

from examples.csv_codec.codec import CsvCodec
from kpipe_platform import JsonCodec, RawCodec, TextCodec
from kpipe_platform.testing.codecs import CodecCase

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
    "csv": CodecCase(
        CsvCodec("id BIGINT NOT NULL, name STRING, amount DOUBLE, day DATE"),
        values=[
            {"id": 1, "name": "one", "amount": 1.5, "day": dt.date(2026, 1, 5)},
            {"id": -(2**63), "name": 'a "quoted", long\nname', "amount": -0.1, "day": dt.date(1, 1, 1)},
            {"id": 3, "name": None, "amount": None, "day": None},
            {"id": 2**63 - 1, "name": " äé中\N{GRINNING FACE} ", "amount": 1e300, "day": dt.date(9999, 12, 31)},
        ],
        faults={
            b"": "not_csv",
            b"\xff,a,1.5,2026-01-05": "not_csv",
            b"1,a,1.5": "not_csv",
            b'1,"a,1.5,2026-01-05': "not_csv",
            b"1,a,1.5,\n2,b,2.5,": "not_csv",
            b",a,1.5,": "null_field",
            b"x,a,1.5,": "wrong_type",
            b"0x1F,a,1.5,": "wrong_type",
            b"9223372036854775808,a,1.5,": "wrong_type",
            b"1,a,1.5,2026-02-30": "wrong_type",
        },
        not_encodable=["text", {"id": "1"}, {"id": 1, "other": 2}],
        misfits=[{"id": 1, "name": "", "amount": 1.5, "day": None}],
        lenient={b"+5,x,2,": {"id": 5, "name": "x", "amount": 2.0, "day": None}},
    ),
}
