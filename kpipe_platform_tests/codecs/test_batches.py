"""Arrow batches of codecs: what a codec may raise and return, and values that Arrow or Python cannot hold."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, JsonCodec
from kpipe_platform.codecs.batches import decode_each, encode_each
from kpipe_platform.errors import ConfigError, DecodeFault, EncodeFault, EnvironmentSetupError, UnknownSchemaIdError
from kpipe_platform.spark.batches import arrow_type, decode_batch, encode_batch, ship

from .careless import LongCodec

ONE, TWO = (LongCodec().encode(number) for number in (1, 2))
DATA = pa.array([ONE, b"bad", None, TWO], pa.binary())


@dataclass(frozen=True)
class Made(LongCodec):
    """A codec whose batch methods return or raise what a test needs."""

    decoded: Any = None
    encoded: Any = None

    def decode_batch(self, data: pa.Array, kind: pa.DataType) -> pa.Array:
        if isinstance(self.decoded, Exception):
            raise self.decoded
        return self.decoded

    def encode_batch(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        if isinstance(self.encoded, Exception):
            raise self.encoded
        return self.encoded  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", [ValueError("x"), pa.ArrowInvalid("x"), KeyError("x"), AttributeError("x")])
def test_a_batch_method_that_raises_is_replaced_record_by_record(error: Exception) -> None:
    codec = Made(error, error)
    assert decode_batch(codec, DATA, pa.int64()).to_pylist() == [1, None, None, 2]
    data, misfits = encode_batch(codec, pa.array([1, None, 2], pa.int64()))
    assert (data.to_pylist(), misfits.to_pylist()) == ([ONE, None, TWO], [None] * 3)


@pytest.mark.parametrize(
    "error", [NameError("x"), OSError("x"), MemoryError(), NotImplementedError(), EnvironmentSetupError("x")]
)
def test_what_bytes_cannot_cause_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        decode_batch(Made(error), DATA, pa.int64())
    with pytest.raises(type(error)):
        encode_batch(Made(None, error), pa.array([1]))


@pytest.mark.parametrize(
    ("decoded", "found"),
    [
        (pa.array([1]), "1 values of type int64"),
        (pa.array([1, 2, 3, 4], pa.int32()), "4 values of type int32"),
        ([1, 2, 3, 4], "list"),
        (None, "NoneType"),
    ],
)
def test_a_batch_of_another_type_or_length_is_refused(decoded: Any, found: str) -> None:
    with pytest.raises(ConfigError, match=f"Made.decode_batch returned {found}; expected 4 values of type int64"):
        decode_batch(Made(decoded), DATA, pa.int64())


def test_a_chunked_batch_is_combined() -> None:
    decoded = decode_batch(Made(pa.chunked_array([[1, None], [None, 2]])), DATA, pa.int64())
    assert decoded.equals(pa.array([1, None, None, 2]))


def test_an_unknown_schema_id_is_for_the_writer_to_find() -> None:
    def decode(data: bytes | None) -> Any:
        raise UnknownSchemaIdError("7")

    assert decode_each(decode, DATA, pa.int64()).to_pylist() == [None] * 4


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1.5, pa.int64()), (2**40, pa.int32()), ("text", pa.int64()), ({"a": 1, "b": 2}, pa.struct([("a", pa.int64())]))],
)
def test_a_value_that_the_type_would_change_is_null(value: Any, kind: pa.DataType) -> None:
    values = iter([value, None])
    assert decode_each(lambda _: next(values), pa.array([b"1", b"2"]), kind).to_pylist() == [None, None]


def test_maps_are_dicts() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    decoded = decode_each(lambda _: {"a": 1}, pa.array([b""]), kind)
    assert decoded.to_pylist() == [[("a", 1)]]
    seen: list[Any] = []
    encode_each(lambda value: seen.append(value) or b"", decoded)
    assert seen == [{"a": 1}]


def test_a_time_that_python_cannot_represent_does_not_encode() -> None:
    late = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))
    data, misfits = encode_each(lambda value: str(value.year).encode(), late)
    assert data.to_pylist() == [b"1970", None]
    assert "Python cannot represent the value" in misfits.to_pylist()[1]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: LongCodec().decode(b"123"), "unreadable", "raised struct.error for these 3 bytes: unpack requires"),
        (
            lambda: LongCodec().encode("text"),
            "not_encodable",
            "raised struct.error for this value: required argument",
        ),
    ],
)
def test_what_a_codec_raises_is_a_fault(call: Callable[[], Any], kind: str, message: str) -> None:
    with pytest.raises((DecodeFault, EncodeFault), match=message) as caught:
        call()
    assert caught.value.kind == kind


def test_explain_names_the_type_that_cannot_hold_the_value() -> None:
    fault = LongCodec().explain(ONE or b"")
    assert (fault.kind, fault.message) == (
        "unreadable",
        "LongCodec decodes these 8 bytes to 1, which bigint cannot hold",
    )


@dataclass(frozen=True)
class Answering(Codec):
    """A codec that returns the same for all bytes and values."""

    name: ClassVar[str] = "answering"
    answer: Any = None

    @property
    def value_type(self) -> T.DataType:
        return JsonCodec("id BIGINT NOT NULL, legs ARRAY<STRUCT<code: STRING NOT NULL>>").fields

    def _decode(self, data: bytes) -> Any:
        return self.answer

    def _encode(self, value: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "Answering decoded these 1 bytes to None"),
        ({}, 'field "id" is required but null'),
        ({"id": 1, "legs": [None, {"code": None}]}, 'field "legs[1].code" is required but null'),
        ("text", "Answering decodes these 1 bytes to 'text', which struct<"),
        ({"id": 1, "other": 2}, "Answering decodes these 1 bytes to {'id': 1, 'other': 2}, which struct<"),
    ],
)
def test_what_does_not_fit_the_declared_columns_is_a_fault(answer: Any, message: str) -> None:
    codec = Answering(answer)
    assert decode_batch(codec, pa.array([b"x", None]), arrow_type(codec)).to_pylist() == [None, None]
    assert codec.explain(b"x").message.startswith(message)


@pytest.mark.parametrize("answer", [None, "text", 1])
def test_what_is_not_bytes_is_never_written_as_a_tombstone(answer: Any) -> None:
    data, misfits = encode_batch(Answering(answer), pa.array([{"id": 1}, None]))
    message = f"Answering encoded this value to {type(answer).__name__}, not bytes"
    assert (data.to_pylist(), misfits.to_pylist()) == ([None, None], [message, None])


def test_a_value_that_a_batch_loses_is_encoded_again() -> None:
    lost = (pa.array([None, None, TWO], pa.binary()), pa.nulls(3, pa.string()))
    data, misfits = encode_batch(Made(None, lost), pa.array([1, None, 2], pa.int64()))
    assert (data.to_pylist(), misfits.to_pylist()) == ([ONE, None, TWO], [None] * 3)


CODEC = """
import struct
from dataclasses import dataclass
from functools import lru_cache
from kpipe_platform import TextCodec

@lru_cache(maxsize=8)
def shout(text):
    return text.upper()

@dataclass(frozen=True)
class Shouting(TextCodec):
    def _decode(self, data):
        return shout(data.decode())

FORMAT = struct.Struct(">q")

class Packed(Shouting):
    def _decode(self, data):
        return FORMAT.unpack(data)
"""


def test_executors_need_not_have_the_module_of_a_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"codec_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODEC)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    codec = module.Shouting()
    ship(codec)
    load = f"import pyspark.cloudpickle as c; print(c.loads({cloudpickle.dumps(codec)!r}).decode(b'a'))"  # type: ignore[no-untyped-call]
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("A\n", "")
    with pytest.raises(ConfigError, match="cannot be sent to Spark's workers: cannot pickle"):
        ship(Made(module.Packed()))
