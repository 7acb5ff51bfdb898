"""Codecs: the bytes of Kafka keys and values to columns and back, and why bytes do not decode."""

from kpipe_platform.codecs.base import (
    EMPTY,
    MISSING_FIELD,
    NOT_AN_OBJECT,
    NOT_ENCODABLE,
    NOT_JSON,
    NOT_UTF8,
    NULL_FIELD,
    UNREADABLE,
    WRONG_TYPE,
    Codec,
    DecodeFault,
    EncodeFault,
)
from kpipe_platform.codecs.config import codec_from_config, codec_to_config
from kpipe_platform.codecs.json_codec import JsonCodec
from kpipe_platform.codecs.raw import RawCodec
from kpipe_platform.codecs.text import TextCodec

__all__ = [
    "EMPTY",
    "MISSING_FIELD",
    "NOT_AN_OBJECT",
    "NOT_ENCODABLE",
    "NOT_JSON",
    "NOT_UTF8",
    "NULL_FIELD",
    "UNREADABLE",
    "WRONG_TYPE",
    "Codec",
    "DecodeFault",
    "EncodeFault",
    "JsonCodec",
    "RawCodec",
    "TextCodec",
    "codec_from_config",
    "codec_to_config",
]
