"""Codecs: convert the bytes of Kafka keys and values to columns and back, and explain why bytes do not decode.

The JSON codec is imported on first use, because its schemas need PySpark and the command line runs without PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.faults import (
    EMPTY,
    MISSING_FIELD,
    NOT_AN_OBJECT,
    NOT_ENCODABLE,
    NOT_JSON,
    NOT_UTF8,
    NULL_FIELD,
    UNREADABLE,
    WRONG_TYPE,
    DecodeFault,
    EncodeFault,
)
from kpipe_platform.codecs.raw import RawCodec
from kpipe_platform.codecs.text import TextCodec

if TYPE_CHECKING:
    from kpipe_platform.codecs.avro.codec import AvroCodec
    from kpipe_platform.codecs.config import codec_from_config, codec_to_config
    from kpipe_platform.codecs.connect.codec import ConnectJsonCodec
    from kpipe_platform.codecs.connect.debezium import DebeziumCodec
    from kpipe_platform.codecs.json.codec import JsonCodec
    from kpipe_platform.codecs.json_schema.codec import JsonSchemaCodec
    from kpipe_platform.codecs.protobuf.codec import ProtobufCodec

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
    "AvroCodec",
    "Codec",
    "ConnectJsonCodec",
    "DebeziumCodec",
    "DecodeFault",
    "EncodeFault",
    "JsonCodec",
    "JsonSchemaCodec",
    "ProtobufCodec",
    "RawCodec",
    "TextCodec",
    "codec_from_config",
    "codec_to_config",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from kpipe_platform.codecs import config

    return getattr(config, name)
