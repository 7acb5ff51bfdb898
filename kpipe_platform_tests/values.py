"""Records of every type that a schema can declare, in every place: for the tests of what becomes of values."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

from kpipe_platform import JsonCodec

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_CHARACTERS = "aZ0 \"\\/'{}[],:\n\t\x00\x1f\x7fäé\u2028中\ufeff\N{GRINNING FACE}"


def _whole(bits: int) -> Callable[[Random], int]:
    limit = 2 ** (bits - 1)
    return lambda random: random.choice([-limit, limit - 1, 0, random.randrange(-limit, limit)])


def _decimal(precision: int, scale: int) -> Callable[[Random], Decimal]:
    limit = 10**precision

    def make(random: Random) -> Decimal:
        whole = random.choice([0, limit - 1, 1, random.randrange(1 - limit, limit), random.randrange(-100, 100)])
        return Decimal(f"{whole}E-{scale}")  # of any length, where scaleb() rounds

    return make


def _double(random: Random) -> Any:
    # Before Java 19 very large and very small numbers may be written with a digit too many.
    return random.choice(
        [
            1e7,
            -1.25e9,
            1e22,
            1.5e300,
            1.25e-5,
            -0.0,
            "Infinity",
            "-Infinity",
            random.randrange(-(10**12), 10**12) / 1000,
        ]
    )


def _float(random: Random) -> Any:
    return random.choice(["Infinity", 1e10, -2.5e-7, 0.1, -0.0, random.randrange(-(10**6), 10**6) / 100])


def _text(random: Random) -> str:
    return "".join(random.choices(_CHARACTERS, k=random.randrange(8)))


def _bytes(random: Random) -> str:
    return base64.b64encode(random.randbytes(random.randrange(5))).decode()


def _moment(random: Random) -> dt.datetime:
    # Of the years 1 to 9999, which is what Python holds.
    first, last = -62_135_596_799, 253_402_214_400
    seconds = random.choice([first, -1, 0, 1_767_225_600, last, random.randrange(first, last)])
    return _EPOCH + dt.timedelta(seconds=seconds, microseconds=random.randrange(10**6))


def _time(suffix: str) -> Callable[[Random], str]:
    return lambda random: _moment(random).replace(tzinfo=None).isoformat(timespec="microseconds") + suffix


# A value of each type, as it is in JSON.
SCALARS: dict[str, Callable[[Random], Any]] = {
    "TINYINT": _whole(8),
    "SMALLINT": _whole(16),
    "INT": _whole(32),
    "BIGINT": _whole(64),
    "FLOAT": _float,
    "DOUBLE": _double,
    "DECIMAL(20,10)": _decimal(20, 10),
    "DECIMAL(38,38)": _decimal(38, 38),
    "BOOLEAN": lambda random: random.random() < 0.5,
    "STRING": _text,
    "VARCHAR(8)": _text,
    "CHAR(8)": _text,
    "BINARY": _bytes,
    "DATE": lambda random: _moment(random).date().isoformat(),
    "TIMESTAMP": _time("Z"),
    "TIMESTAMP_NTZ": _time(""),
}
NAMES = {kind: kind.split("(")[0].lower() + str(number) for number, kind in enumerate(SCALARS)}
# Each type as a column, required, and inside of the others. Fields named m are maps, which polars does not have.
_SHAPES = "{n} {t}, {n}_r {t} NOT NULL, {n}_l ARRAY<STRUCT<v: {t} NOT NULL, w: {t}, l: ARRAY<ARRAY<{t}>>>>"
_MAPS = ", {n}_s STRUCT<m: MAP<STRING, ARRAY<STRUCT<v: {t}, m: MAP<STRING, {t}>>>>>"


def _schema(shapes: str) -> JsonCodec:
    return JsonCodec(", ".join(shapes.format(n=name, t=kind) for kind, name in NAMES.items()))


SOURCE = _schema(_SHAPES + _MAPS)
WITHOUT_MAPS = _schema(_SHAPES)


class _Maker:
    def __init__(self, random: Random, value: Callable[[Random], Any]) -> None:
        self.random = random
        self.value = lambda: value(random)

    def maybe(self, make: Callable[[], Any]) -> Any:
        return None if self.random.random() < 0.2 else make()

    def object(self, **fields: Callable[[], Any]) -> dict[str, Any]:
        """Some of the fields, null or not."""
        return {name: self.maybe(make) for name, make in fields.items() if self.random.random() < 0.8}

    def list(self, make: Callable[[], Any]) -> list[Any]:
        return [self.maybe(make) for _ in range(self.random.randrange(3))]

    def map(self, make: Callable[[], Any]) -> dict[str, Any]:
        return {_text(self.random): self.maybe(make) for _ in range(self.random.randrange(3))}

    def fields(self, name: str) -> dict[str, Any]:
        def leg() -> dict[str, Any]:
            return {"v": self.value()} | self.object(w=self.value, l=lambda: self.list(lambda: self.list(self.value)))

        def entry() -> list[Any]:
            return self.list(lambda: self.object(v=self.value, m=lambda: self.map(self.value)))

        columns: dict[str, Callable[[], Any]] = {
            name: self.value,
            f"{name}_l": lambda: self.list(leg),
            f"{name}_s": lambda: self.object(m=lambda: self.map(entry)),
        }
        return self.object(**columns) | {f"{name}_r": self.value()}


def record(random: Random) -> dict[str, Any]:
    """A record of `SOURCE`."""
    made: dict[str, Any] = {}
    for kind, value in SCALARS.items():
        made |= _Maker(random, value).fields(NAMES[kind])
    return made


def text_of(value: Any) -> str:
    """JSON with all digits of a Decimal."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{text_of(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)
