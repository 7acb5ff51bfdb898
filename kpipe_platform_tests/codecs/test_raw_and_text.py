from __future__ import annotations

import pickle

import pytest

from kpipe_platform.codecs import Codec, DecodeFault, EncodeFault, RawCodec, TextCodec
from kpipe_platform.errors import TerminalError


def test_raw_takes_what_holds_bytes() -> None:
    assert RawCodec().encode(bytearray(b"a")) == b"a"
    assert RawCodec().decode(bytearray(b"a")) == b"a"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff", "not UTF-8: byte 0xff at position 0 (invalid start byte)"),
        (b"abc\xe9t\xe9", "not UTF-8: byte 0xe9 at position 3 (invalid continuation byte)"),
        (b"abc\xe2\x82", "not UTF-8: byte 0xe2 at position 3 (unexpected end of data)"),
        (b"\xed\xa0\x80", "not UTF-8: byte 0xed at position 0 (invalid continuation byte)"),
    ],
)
def test_text_names_the_byte_that_is_not_utf8(data: bytes, message: str) -> None:
    fault = TextCodec().diagnose(data)
    assert fault is not None
    assert (fault.kind, fault.message, fault.field) == ("not_utf8", message, None)
    with pytest.raises(DecodeFault, match="not UTF-8"):
        TextCodec().decode(data)


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        (RawCodec(), "text", "codec 'raw' encodes bytes, not str"),
        (TextCodec(), b"bytes", "codec 'text' encodes str, not bytes"),
        (TextCodec(), "a\ud800", "the text has a lone surrogate at position 1, which UTF-8 cannot encode"),
    ],
)
def test_what_has_no_bytes(codec: Codec, value: object, message: str) -> None:
    with pytest.raises(EncodeFault) as caught:
        codec.encode(value)
    assert (caught.value.message, caught.value.kind) == (message, "not_encodable")


def test_a_fault_is_a_terminal_error_and_pickles() -> None:
    fault = DecodeFault("why", kind="wrong_type", field="a.b")
    copy = pickle.loads(pickle.dumps(fault))
    assert isinstance(copy, TerminalError | ValueError)
    assert (type(copy), copy.message, copy.kind, copy.field) == (DecodeFault, "why", "wrong_type", "a.b")


def test_explain_has_an_answer_even_where_nothing_is_found() -> None:
    fault = TextCodec().explain(b"fine")
    assert (fault.kind, fault.message) == (
        "unreadable",
        "Spark could not decode these 4 bytes as text; kpipe did not find the reason",
    )
