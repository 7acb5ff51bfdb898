from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from kpipe_platform.codecs import Codec, JsonCodec, RawCodec, TextCodec, codec_from_config, codec_to_config
from kpipe_platform.errors import ConfigError

CODECS = [
    (RawCodec(), {"codec": "raw"}),
    (TextCodec(), {"codec": "text"}),
    (JsonCodec(), {"codec": "json", "schema": None, "include_nulls": False}),
    (
        JsonCodec("a int not null", include_nulls=True),
        {"codec": "json", "schema": "a INT NOT NULL", "include_nulls": True},
    ),
]


@pytest.mark.parametrize(("codec", "config"), CODECS)
def test_round_trip(codec: Codec, config: dict[str, Any]) -> None:
    assert codec_to_config(codec) == config
    copy = codec_from_config(json.loads(json.dumps(config)))
    assert (copy, hash(copy)) == (codec, hash(codec))


@pytest.mark.parametrize(("codec", "_"), CODECS)
def test_codecs_pickle_by_value(codec: Codec, _: object) -> None:
    copy = pickle.loads(pickle.dumps(codec))
    assert (copy, hash(copy), codec_to_config(copy)) == (codec, hash(codec), codec_to_config(codec))


def test_codecs_of_different_settings_differ() -> None:
    assert JsonCodec("a INT") != JsonCodec("a INT NOT NULL")
    assert JsonCodec("a INT") == JsonCodec(" a  integer ")
    assert RawCodec() != TextCodec()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "unknown codec None"),
        ({"codec": "avro"}, "unknown codec 'avro'"),
        ({"codec": ["raw"]}, r"unknown codec \['raw'\]"),
        ({"codec": "text", "charset": "latin-1"}, "codec 'text' has no setting 'charset'"),
        ({"codec": "json", "fields": []}, "codec 'json' has no setting 'fields'"),
        ({"codec": "json", "schema": "a INTT"}, "expected a type, found 'INTT'"),
    ],
)
def test_what_is_no_codec(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        codec_from_config(config)


def test_a_codec_of_another_class_has_no_config() -> None:
    class Shouting(TextCodec):
        pass

    with pytest.raises(ConfigError, match="Shouting"):
        codec_to_config(Shouting())
