"""Arrow batches of codecs: what a codec may raise and return, and values that Arrow or Python cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from kpipe_platform.codecs.batches import decode_each, encode_each
from kpipe_platform.errors import ConfigError, DecodeFault, EncodeFault, EnvironmentSetupError, UnknownSchemaIdError
from kpipe_platform.spark.batches import decode_batch, encode_batch

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
        "LongCodec decodes these 8 bytes to a value that bigint cannot hold",
    )
