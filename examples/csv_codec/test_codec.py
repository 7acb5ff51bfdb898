"""The conformance test, for codecs of your own."""

import datetime as dt
from dataclasses import replace

import pytest

from examples.csv_codec.codec import CsvCodec
from examples.csv_codec.fast import FastCsvCodec
from examples.csv_codec.number import LongCodec
from kpipe_platform import KafkaIOManager
from kpipe_platform.testing.codecs import CodecCase, check_codec, check_codec_in_topics

SCHEMA = "id BIGINT NOT NULL, name STRING, amount DOUBLE, day DATE"

CASE = CodecCase(
    CsvCodec(SCHEMA),
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
)


@pytest.mark.parametrize("codec", [CsvCodec(SCHEMA), FastCsvCodec(SCHEMA)], ids=["records", "batches"])
def test_csv_in_python(codec: CsvCodec) -> None:
    check_codec(replace(CASE, codec=codec))


def test_csv_in_topics(kafka_io_manager: KafkaIOManager) -> None:
    check_codec_in_topics(replace(CASE, codec=FastCsvCodec(SCHEMA)), kafka_io_manager)


LONG = CodecCase(
    LongCodec(),
    values=[0, 1, -1, 2**63 - 1, -(2**63)],
    faults={b"": "unreadable", b"1234567": "unreadable", b"123456789": "unreadable"},
    not_encodable=["1", 1.5, 2**63],
)


def test_long_in_python() -> None:
    check_codec(LONG)


@pytest.mark.slow
def test_long_in_topics(kafka_io_manager: KafkaIOManager) -> None:
    check_codec_in_topics(LONG, kafka_io_manager)
