"""The topics that an asset reads, from its definition and those of its upstream assets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.step import READ_FEED, READ_SLICE, read_of, topic_of
from kpipe_platform.metadata_keys import DEAD_LETTER_TABLE, TOPIC
from kpipe_platform.partitions.groups import leading_key, unknown_asset
from kpipe_platform.resources._compat import repository_of_module


def topics_read(asset: dg.AssetsDefinition, repository: dg.RepositoryDefinition | None) -> tuple[str, ...]:
    """Return the topics that an asset reads slices of. The first one determines the asset's partitions.

    Args:
        asset: A ``@kafka_asset``, or a plain asset that reads a topic asset.
        repository: The definitions that contain the topic assets.

    Raises:
        ConfigError: The asset does not read slices of a topic, or an upstream asset is not among the definitions.
    """
    name = leading_key(asset).to_user_string()
    if repository is None:
        msg = f"cannot find the topics of asset {name}: the context has no definitions"
        raise ConfigError(msg, fix="in a test, pass build_sensor_context(definitions=Definitions(...), ...)")
    graph = repository.asset_graph
    topics: list[str] = []
    for key, mode in read_modes(asset).items():
        if not graph.has(key):
            if mode == READ_FEED:
                msg = f"asset {name} reads {key.to_user_string()}, which is not among the definitions"
                raise ConfigError(msg, fix="add the topic asset to Definitions(assets=...)")
            continue
        metadata = graph.get(key).metadata
        if reads_slices(mode, metadata):
            topics.append(topic_of(metadata, key).name)
    if not topics:
        msg = f"asset {name} does not read slices of a Kafka topic"
        raise ConfigError(msg, fix="use a @kafka_asset, or a plain asset with a topic asset as input")
    return tuple(topics)


def reads_in_module(module: str, asset_key: dg.AssetKey) -> tuple[dg.AssetKey, tuple[str, ...]]:
    """Return what an asset of a Python module reads, for commands that run outside of Dagster.

    Args:
        module: The module with the definitions, as for ``dagster dev -m``.
        asset_key: The asset.

    Returns:
        The asset, or the first one of its ``@kafka_multi_asset``, and the topics.

    Raises:
        ConfigError: The module cannot be imported, or its definitions have no such asset, or the asset does not read
            slices of a topic.
    """
    try:
        repository = repository_of_module(module)
    except Exception as error:
        msg = f"cannot load the definitions of module {module!r}: {type(error).__name__}: {error}"
        raise ConfigError(
            msg, fix="use the module of workspace.yaml or of `dagster dev -m`, and correct its import errors"
        ) from error
    definitions = {} if repository is None else repository.assets_defs_by_key
    found = definitions.get(asset_key)
    if found is None:
        raise unknown_asset(asset_key, definitions, fix=f"or add the asset to module {module}")
    return leading_key(found), topics_read(found, repository)


def read_modes(asset: dg.AssetsDefinition) -> dict[dg.AssetKey, str]:
    """Return the read mode of each upstream asset that is an input: slice, feed or table.

    Assets in ``deps`` are left out, because the asset does not load them.

    Raises:
        ConfigError: An input has an unknown read mode, or unknown ``kpipe/`` metadata.
    """
    modes = {}
    for name, key in asset.keys_by_input_name.items():
        declared = asset.node_def.input_def_named(name)
        if not declared.dagster_type.is_nothing:
            modes[key] = read_of(declared.metadata, f"input {name!r} of {leading_key(asset).to_user_string()}")
    return modes


def reads_slices(mode: str, metadata: Mapping[str, Any]) -> bool:
    """Return whether an input reads slices of a topic.

    Args:
        mode: Its read mode.
        metadata: Metadata of the upstream asset. By default, a topic is read by slices, and a dead-letter table is
            loaded as a whole.
    """
    return mode == READ_FEED or (mode == READ_SLICE and TOPIC in metadata and DEAD_LETTER_TABLE not in metadata)
