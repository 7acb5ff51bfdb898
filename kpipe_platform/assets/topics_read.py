"""The topics that an asset reads, from its definition and those of its upstream assets."""

from __future__ import annotations

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.step import READ_FEED, READ_SLICE, read_of, topic_of
from kpipe_platform.metadata_keys import DEAD_LETTER_TABLE, TOPIC
from kpipe_platform.partitions.groups import unknown_asset
from kpipe_platform.resources._compat import repository_of_module


def topics_read(asset: dg.AssetsDefinition, repository: dg.RepositoryDefinition | None) -> tuple[str, ...]:
    """Return the topics that an asset reads slices of. The first one determines the asset's partitions.

    Args:
        asset: A ``@kafka_asset``, or a plain asset that reads a topic asset.
        repository: The definitions that contain the topic assets.

    Raises:
        ConfigError: The asset reads no topic by slices, or an upstream asset is not among the definitions.
    """
    name = asset.key.to_user_string()
    if repository is None:
        msg = f"the sensor of {name} has no definitions to find its topics in"
        raise ConfigError(msg, fix="in a test: build_sensor_context(definitions=Definitions(...), ...)")
    graph = repository.asset_graph
    topics: list[str] = []
    for parameter, key in asset.keys_by_input_name.items():
        read = _read_of(asset, parameter)
        if not graph.has(key):
            if read == READ_FEED:
                msg = f"asset {name} reads {key.to_user_string()}, which is not among the definitions"
                raise ConfigError(msg, fix="add the topic asset to Definitions(assets=...)")
            continue
        metadata = graph.get(key).metadata
        declares = TOPIC in metadata and DEAD_LETTER_TABLE not in metadata
        takes_slices = read == READ_FEED or (read == READ_SLICE and declares)
        if takes_slices:
            topics.append(topic_of(metadata, key).name)
    if not topics:
        msg = f"asset {name} takes slices of no Kafka topic"
        raise ConfigError(msg, fix="name an asset of @kafka_asset, or a plain asset that reads a topic asset")
    return tuple(topics)


def topics_in_module(module: str, asset_key: dg.AssetKey) -> tuple[str, ...]:
    """Return the topics that an asset of a Python module reads, for commands that run outside of Dagster.

    Args:
        module: The module with the definitions, as for ``dagster dev -m``.
        asset_key: The asset.

    Raises:
        ConfigError: The module cannot be imported, or its definitions have no such asset that reads a topic by slices.
    """
    try:
        repository = repository_of_module(module)
    except Exception as error:
        msg = f"cannot load the definitions of module {module!r}: {type(error).__name__}: {error}"
        raise ConfigError(msg, fix="name the module that workspace.yaml or dagster dev -m names") from error
    definitions = {} if repository is None else repository.assets_defs_by_key
    found = definitions.get(asset_key)
    if found is None:
        raise unknown_asset(asset_key, definitions, fix=f"or add the asset to module {module}")
    return topics_read(found, repository)


def _read_of(asset: dg.AssetsDefinition, parameter: str) -> str:
    """Return the read mode of an input: slice, feed or table."""
    inputs = asset.node_def.input_dict
    metadata = inputs[parameter].metadata if parameter in inputs else {}
    return read_of(metadata, f"input {parameter!r} of {asset.key.to_user_string()}")
