"""Convert codecs to JSON-compatible settings and back, for task arguments and metadata."""

from __future__ import annotations

import dataclasses
from typing import Any

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.json.codec import JsonCodec
from kpipe_platform.codecs.raw import RawCodec
from kpipe_platform.codecs.text import TextCodec
from kpipe_platform.errors import ConfigError

CODECS: dict[str, type[Codec]] = {cls.name: cls for cls in (RawCodec, TextCodec, JsonCodec)}
"""All codecs by name. A codec's settings are the fields of its dataclass."""


def codec_to_config(codec: Codec) -> dict[str, Any]:
    """Return the codec's name and settings.

    Args:
        codec: A codec of `CODECS`.

    Returns:
        A dict such as ``{"codec": "json", "schema": "id BIGINT", "include_nulls": False}``.

    Raises:
        ConfigError: The codec is not one of `CODECS`.
    """
    if CODECS.get(codec.name) is not type(codec):
        msg = f"codec {type(codec).__qualname__} ({codec.name!r}) is not one of kpipe's codecs"
        raise ConfigError(msg, fix=f"use one of {', '.join(sorted(CODECS))}")
    return {"codec": codec.name, **{name: getattr(codec, name) for name in _settings(type(codec))}}


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
    cls = CODECS.get(name) if isinstance(name, str) else None
    if cls is None:
        msg = f"unknown codec {name!r}"
        raise ConfigError(msg, fix=f"use one of {', '.join(sorted(CODECS))}", codec=name)
    unknown = sorted(settings.keys() - _settings(cls))
    if unknown:
        msg = f"codec {name!r} has no setting {', '.join(map(repr, unknown))}"
        raise ConfigError(msg, fix=f"its settings are: {', '.join(sorted(_settings(cls))) or 'none'}", codec=name)
    return cls(**settings)


def _settings(cls: type[Codec]) -> set[str]:
    fields: dict[str, dataclasses.Field[Any]] = getattr(cls, "__dataclass_fields__", {})
    return {name for name, field in fields.items() if field.init and name != "name"}
