"""Convert codecs to JSON-compatible settings and back, for task arguments and metadata."""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import Any

from pyspark.sql import types as T

from kpipe_platform.codecs.avro.codec import AvroCodec
from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.connect.codec import ConnectJsonCodec
from kpipe_platform.codecs.connect.debezium import DebeziumCodec
from kpipe_platform.codecs.json.codec import JsonCodec
from kpipe_platform.codecs.json_schema.codec import JsonSchemaCodec
from kpipe_platform.codecs.protobuf.codec import ProtobufCodec
from kpipe_platform.codecs.raw import RawCodec
from kpipe_platform.codecs.text import TextCodec
from kpipe_platform.errors import ConfigError

CODECS: dict[str, type[Codec]] = {
    cls.name: cls
    for cls in (
        RawCodec,
        TextCodec,
        JsonCodec,
        JsonSchemaCodec,
        AvroCodec,
        ProtobufCodec,
        ConnectJsonCodec,
        DebeziumCodec,
    )
}
"""kpipe's codecs by name. A codec's settings are the fields of its dataclass."""


def codec_to_config(codec: Codec) -> dict[str, Any]:
    """Return the codec's name and settings.

    Args:
        codec: A codec: one of `CODECS`, or a frozen dataclass of a module.

    Returns:
        A dict such as ``{"codec": "json", "schema": "id BIGINT", "include_nulls": False}``. The name of a codec that
        is not kpipe's is its import path, such as ``shop.codecs:CsvCodec``.

    Raises:
        ConfigError: The codec's class cannot be imported by its name, is not a dataclass, or has a setting that
            is neither JSON nor a codec.
    """
    cls = type(codec)
    name = codec.name if CODECS.get(codec.name) is cls else f"{cls.__module__}:{cls.__qualname__}"
    config = {"codec": name, **{setting: _to_json(getattr(codec, setting)) for setting in _settings(cls)}}
    try:
        is_same = codec_from_config(json.loads(json.dumps(config))) == codec
    except (TypeError, ValueError) as error:
        msg = f"codec {name} has a setting that is neither JSON nor a codec: {error}"
        raise ConfigError(msg, fix="give it settings that are text, numbers, booleans, lists or dicts") from error
    if not is_same:
        msg = f"codec {name} differs if it is made again from its settings {sorted(_settings(cls))}"
        raise ConfigError(msg, fix="make it a frozen dataclass whose fields are all of its settings")
    return config


def _to_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    return codec_to_config(value) if isinstance(value, Codec) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        # A codec is hashable, so its setting was a tuple.
        return tuple(_from_json(each) for each in value)
    return codec_from_config(value) if isinstance(value, dict) and "codec" in value else value


def codec_from_config(config: dict[str, Any]) -> Codec:
    """Create a codec from the settings that `codec_to_config` returned.

    Args:
        config: The name under ``codec``, and the settings. Missing settings have their defaults.

    Returns:
        A codec that equals the original.

    Raises:
        ConfigError: The name or a setting is unknown, or a setting is invalid.
    """
    settings = dict(config)
    name = settings.pop("codec", None)
    cls = (CODECS.get(name) or _imported(name)) if isinstance(name, str) else None
    if cls is None:
        msg = f"unknown codec {name!r}"
        fix = f"use one of {', '.join(sorted(CODECS))}, or the import path of a codec's class: MODULE:CLASS"
        raise ConfigError(msg, fix=fix, codec=name)
    unknown = sorted(settings.keys() - _settings(cls))
    if unknown:
        msg = f"codec {name!r} has no setting {', '.join(map(repr, unknown))}"
        raise ConfigError(msg, fix=f"its settings are: {', '.join(sorted(_settings(cls))) or 'none'}", codec=name)
    try:
        return cls(**{setting: _from_json(value) for setting, value in settings.items()})
    except TypeError as error:
        msg = f"codec {name!r} cannot be made from the settings {sorted(settings)}: {error}"
        raise ConfigError(msg, fix="make it a frozen dataclass whose fields are all of its settings") from error


def require_codec(codec: object, where: str) -> None:
    """Refuse an object that cannot be used as a codec.

    Args:
        codec: The object.
        where: What it was given as, for the message.

    Raises:
        ConfigError: It is not a codec, cannot be hashed, or declares no valid columns.
    """
    if not isinstance(codec, Codec):
        msg = f"{where} is {codec!r}, which is not a codec"
        raise ConfigError(msg, fix="use RawCodec(), TextCodec(), JsonCodec(...) or a codec of your own")
    cls = type(codec).__name__
    if not isinstance(getattr(codec, "name", None), str):
        msg = f"{where}: {cls} has no name"
        raise ConfigError(msg, fix='add a line to the class: name: ClassVar[str] = "..."')
    try:
        hash(codec)
    except TypeError as error:
        msg = f"{where}: {cls} is not hashable: {error}"
        raise ConfigError(msg, fix="decorate it with @dataclass(frozen=True), with tuples for lists") from error
    if not codec.has_schema:
        return
    kind: object = codec.value_type
    if not isinstance(kind, T.DataType):
        msg = f"{where}: the value_type of {cls} is {kind!r}, which is not a pyspark DataType"
        raise ConfigError(msg, fix="return a pyspark StructType, or the type of the column value")
    names: dict[str, str] = {}
    for name in codec.fields.names:
        twin = names.setdefault(name.lower(), name)
        if twin is not name:
            msg = f"{where}: {cls} has the columns {twin!r} and {name!r}, which Spark does not distinguish"
            raise ConfigError(msg, fix="rename one of them", field=name)


def _imported(path: str) -> type[Codec] | None:
    module, _, name = path.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name) if name else None
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"codec {path!r} cannot be imported: {error}"
        raise ConfigError(msg, fix="define the codec's class at the top of a module that can be imported") from error
    return found if isinstance(found, type) and issubclass(found, Codec) else None


def _settings(cls: type[Codec]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls) if field.init} if dataclasses.is_dataclass(cls) else set()
