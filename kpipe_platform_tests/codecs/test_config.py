from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, JsonCodec, RawCodec, TextCodec, codec_from_config, codec_to_config
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError

from .careless import LongCodec

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
        ({"codec": "xml"}, "unknown codec 'xml'"),
        ({"codec": ["raw"]}, r"unknown codec \['raw'\]"),
        ({"codec": "text", "charset": "latin-1"}, "codec 'text' has no setting 'charset'"),
        ({"codec": "json", "fields": []}, "codec 'json' has no setting 'fields'"),
        ({"codec": "json", "schema": "a INTT"}, "expected a type, found 'INTT'"),
    ],
)
def test_what_is_no_codec(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        codec_from_config(config)


@dataclass(frozen=True)
class _Own(LongCodec):
    """A codec with a setting, and whatever column type a test needs."""

    setting: Any = None
    kind: ClassVar[Any] = T.LongType()

    @property
    def value_type(self) -> T.DataType:
        return type(self).kind  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Twins(_Own):
    kind = T.StructType().add("id", "long").add("ID", "long")


@dataclass(frozen=True)
class _Text(_Own):
    kind = "id BIGINT"


class _Plain(LongCodec):
    def __init__(self, size: int) -> None:
        object.__setattr__(self, "size", size)


def test_a_users_codec_is_named_by_its_path() -> None:
    codec = _Own("x")
    config = json.loads(json.dumps(codec_to_config(codec)))
    assert config == {"codec": f"{__name__}:_Own", "setting": "x"}
    assert codec_from_config(config) == codec
    for nested in (_Own(TextCodec()), _Own((1, ("a", TextCodec())))):
        copy = codec_from_config(json.loads(json.dumps(codec_to_config(nested))))
        assert (copy, hash(copy)) == (nested, hash(nested))


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (TextCodec, "which is not a codec"),
        (_Own([1]), "_Own is not hashable"),
        (_Text(), "value_type of _Text is 'id BIGINT', which is not a pyspark DataType"),
        (_Twins(), "_Twins has the columns 'id' and 'ID', which Spark does not distinguish"),
    ],
)
@pytest.mark.parametrize("part", ["value_codec", "key_codec"])
def test_what_a_topic_refuses(codec: Any, message: str, part: str) -> None:
    with pytest.raises(ConfigError, match=f"topic 't': {part}.*{re.escape(message)}"):
        KafkaTopic("t", **{part: codec})


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (_Own(object()), "a setting that is neither JSON nor a codec"),
        (_Own(frozenset()), "a setting that is neither JSON nor a codec"),
        (_Plain(3), "cannot be made from the settings"),
    ],
)
def test_settings_that_metadata_cannot_hold(codec: Codec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KafkaTopic("t", value_codec=codec).as_metadata()


def test_a_codec_of_another_class_has_no_config() -> None:
    class Shouting(TextCodec):
        pass

    with pytest.raises(ConfigError, match="Shouting"):
        codec_to_config(Shouting())
