from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import BaseModel

from kpipe_platform.codecs import EncodeFault, JsonCodec


@dataclass
class Leg:
    code: str
    gate: int | None = None


class Plane(BaseModel):
    tailnum: str
    seats: int | None = None


class Row:
    def asDict(self) -> dict[str, Any]:
        return {"code": "EWR"}


class Carrier(str, enum.Enum):
    UNITED = "UA"


class Number(enum.Enum):
    ONE = 1


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ({"b": 1, "a": "x"}, '{"b":1,"a":"x"}'),
        ({"a": None, "b": None}, "{}"),
        ({"a": None, "b": {"c": None, "d": 1}}, '{"b":{"d":1}}'),
        ({"a": [None, {"b": None}]}, '{"a":[null,{}]}'),
        ({"a": True, "b": False, "i": 2**70}, '{"a":true,"b":false,"i":1180591620717411303424}'),
        ({"f": 1.5, "g": 1e300, "h": 0.001}, '{"f":1.5,"g":1.0E300,"h":0.001}'),
        ({"f": -1.25e7, "g": 9999999.0, "h": 1e-4, "z": -0.0}, '{"f":-1.25E7,"g":9999999.0,"h":1.0E-4,"z":-0.0}'),
        ({"n": float("nan"), "i": float("-inf")}, '{"n":"NaN","i":"-Infinity"}'),
        ({"d": Decimal("12.50"), "e": Decimal("1E+3"), "t": Decimal("1E-7")}, '{"d":12.50,"e":1000,"t":1E-7}'),
        ({"d": Decimal("1E+999")}, '{"d":1E+999}'),
        ({"d": dt.date(2013, 1, 1), "t": dt.time(5, 17)}, '{"d":"2013-01-01","t":"05:17:00"}'),
        ({"t": dt.datetime(2013, 1, 1, 5, 17, tzinfo=dt.timezone.utc)}, '{"t":"2013-01-01T05:17:00.000000Z"}'),
        (
            {"t": dt.datetime(2013, 1, 1, 5, 17, 0, 9, dt.timezone(dt.timedelta(hours=1)))},
            '{"t":"2013-01-01T05:17:00.000009+01:00"}',
        ),
        ({"b": b"\xff\x00", "c": bytearray(b"a")}, '{"b":"/wA=","c":"YQ=="}'),
        ({"s": 'é"\\\n\x00\N{SNOWMAN}'}, '{"s":"é\\"\\\\\\n\\u0000\N{SNOWMAN}"}'),
        ({"s": "\x1f\\u001f"}, '{"s":"\\u001F\\\\u001f"}'),
        ({"u": uuid.UUID(int=1)}, '{"u":"00000000-0000-0000-0000-000000000001"}'),
        ({"c": Carrier.UNITED, "n": Number.ONE}, '{"c":"UA","n":1}'),
        ({Carrier.UNITED: 1}, '{"UA":1}'),
        (Leg("EWR"), '{"code":"EWR"}'),
        ({"legs": [Leg("EWR", 7)]}, '{"legs":[{"code":"EWR","gate":7}]}'),
        (Plane(tailnum="N1"), '{"tailnum":"N1"}'),
        (Row(), '{"code":"EWR"}'),
        (Pair(1, None), '{"a":1}'),
        ((1, 2), "[1,2]"),
        ({"i": np.int64(5), "f": np.float64(0.5), "l": np.array([1, 2])}, '{"i":5,"f":0.5,"l":[1,2]}'),
        ({"t": pd.Timestamp("2013-01-01"), "n": pd.NaT}, '{"t":"2013-01-01T00:00:00.000000","n":null}'),
    ],
)
def test_encode(value: Any, text: str) -> None:
    data = JsonCodec().encode(value)
    assert data == text.encode()
    json.loads(text)


def test_nulls_stay_where_asked_for() -> None:
    codec = JsonCodec(include_nulls=True)
    assert codec.encode({"a": None, "b": Leg("x")}) == b'{"a":null,"b":{"code":"x","gate":null}}'


def test_nulls_in_maps_stay_and_those_in_structs_do_not() -> None:
    codec = JsonCodec("m MAP<STRING, STRUCT<x: INT>>, l ARRAY<STRUCT<m: MAP<STRING, INT>, y: INT>>")
    value = {"m": {"a": None, "b": {"x": None}}, "l": [{"m": {"a": None}, "y": None}], "other": {"a": None}}
    assert codec.encode(value) == b'{"m":{"a":null,"b":{}},"l":[{"m":{"a":null}}],"other":{}}'


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        ({"a": {"b": object}}, "a.b", "a.b is type (<class 'object'>), which has no JSON form"),
        ({"a": [1, dt.timedelta(1)]}, "a[1]", "a[1] is timedelta (1 day, 0:00:00), which has no JSON form"),
        ({"a": Decimal("NaN")}, "a", "a is Decimal (NaN), which has no JSON form"),
        ({1: 2}, None, "the name 1 in the value is int; names in JSON are strings"),
        ({"a": "\ud800"}, None, "a text has a lone surrogate ('\\ud800'), which UTF-8 cannot encode"),
    ],
)
def test_what_json_cannot_hold(value: Any, field: str | None, message: str) -> None:
    with pytest.raises(EncodeFault) as caught:
        JsonCodec().encode(value)
    assert (caught.value.message, caught.value.field, caught.value.kind) == (message, field, "not_encodable")
