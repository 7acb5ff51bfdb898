"""The topic asset or Kafka asset that another asset, a check or a sensor reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform.errors import ConfigError

Source = dg.AssetSpec | dg.AssetsDefinition


def sources_of(given: Source | Sequence[Source], where: str) -> list[Source]:
    """Return one or several sources as a list.

    Args:
        given: The sources.
        where: The argument that contains them, for messages.

    Raises:
        ConfigError: One is not the definition of a single asset.
    """
    # A spec and a key are tuples too.
    several: list[Any] = [given]
    if isinstance(given, list | tuple) and not isinstance(given, Source | dg.AssetKey):
        several = list(given)
    for one in several:
        require_source(one, where)
    return several


def require_source(given: object, where: str) -> None:
    """Reject anything other than the definition of a single asset.

    Args:
        given: The source.
        where: The argument that contains it, for messages.

    Raises:
        ConfigError: It is something else.
    """
    fix = "pass the result of kafka_topic_asset(...) or dagster.AssetSpec(...), or a @kafka_asset"
    if not isinstance(given, Source):
        msg = f"{where}: a source must be an asset definition, but {given!r} is {type(given).__name__}"
        raise ConfigError(msg, fix=fix)
    if isinstance(given, dg.AssetsDefinition) and len(given.keys) != 1:
        keys = ", ".join(sorted(key.to_user_string() for key in given.keys)) or "none"
        msg = f"{where}: a source must define exactly one asset, but this definition has the assets: {keys}"
        raise ConfigError(
            msg, fix="pass one of them: definition.get_asset_spec(dagster.AssetKey(...))" if given.keys else fix
        )


def declared_metadata(source: Source) -> Mapping[str, Any]:
    """Return the metadata that a source declares."""
    return (source if isinstance(source, dg.AssetSpec) else source.get_asset_spec()).metadata
