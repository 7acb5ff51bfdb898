"""Find what an asset reads. Operators name assets; Dagster's records contain the consumer group and the topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.metadata_keys import CONSUMER_GROUP, MULTI_ASSET, stored_metadata
from kpipe_platform.partitions.materializations import last_materialization, topics_of
from kpipe_platform.partitions.runs import GROUP, requested_ranges

_NEAR = 3


@dataclass(frozen=True)
class Reads:
    """What an asset reads.

    Args:
        group: Its consumer group.
        topics: The topics that it reads slices of.
        first: For an asset of a ``@kafka_multi_asset``: the first one, which names the group and has the pauses.
    """

    group: str
    topics: tuple[str, ...]
    first: dg.AssetKey | None = None


def outputs_of(assets: dg.AssetsDefinition) -> dict[str, dg.AssetKey]:
    """Return the assets of a ``@kafka_multi_asset`` by output name, in their order; empty for any other asset."""
    outputs = dict(assets.keys_by_output_name)
    is_multi = all(assets.metadata_by_key.get(key, {}).get(MULTI_ASSET) for key in outputs.values())
    return outputs if is_multi else {}


def leading_key(assets: dg.AssetsDefinition) -> dg.AssetKey:
    """Return the key of an asset; of a ``@kafka_multi_asset``, that of the first output, which names its group."""
    return next(iter(outputs_of(assets).values()), None) or assets.key


def parse_asset(text: str) -> dg.AssetKey:
    """Return the key of an asset as Dagster's UI shows it: ``orders_priced``, ``shop/orders_priced``.

    Raises:
        ConfigError: A part of the key is empty.
    """
    key = dg.AssetKey.from_user_string(text.strip())
    if not all(key.path):
        msg = f"{text!r} is not an asset key"
        raise ConfigError(msg, fix='write it as the UI shows it: "orders_priced", "shop/orders_priced"')
    return key


def reads_of(instance: dg.DagsterInstance, asset_key: dg.AssetKey) -> Reads | None:
    """Return what an asset reads: from its last run if a sensor requested it, otherwise from its last materialization.

    Args:
        instance: Dagster instance.
        asset_key: The asset.

    Returns:
        The group and the topics; None if Dagster has no record of an offset range that the asset read.
    """
    records = instance.get_asset_records([asset_key])
    run_id = records[0].asset_entry.last_run_id if records else None
    run = instance.get_run_by_id(run_id) if run_id is not None else None
    first = None if run is None else run.tags.get(MULTI_ASSET)
    if run is not None and GROUP in run.tags and (first or run.asset_selection == {asset_key}):
        topics = tuple(dict.fromkeys(topic for topic, _ in requested_ranges(run.tags)))
        if topics:
            return Reads(run.tags[GROUP], topics, None if first is None else dg.AssetKey.from_user_string(first))
    last = last_materialization(instance, asset_key)
    group = _group_of(last)
    topics = () if last is None else topics_of(last)
    if last is None or group is None or not topics:
        return None
    stored = stored_metadata(last.metadata).get(MULTI_ASSET)
    return Reads(group, topics, None if stored is None else dg.AssetKey.from_user_string(str(stored.value)))


def all_reads(instance: dg.DagsterInstance) -> Iterator[tuple[dg.AssetKey, Reads]]:
    """Yield the assets that have read a topic, in order of their keys, with what they read."""
    for key in sorted(instance.get_asset_keys(), key=lambda key: list(key.path)):
        found = reads_of(instance, key)
        if found is not None:
            yield key, found


def known_reads(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, *, fix: str, also: Iterable[dg.AssetKey] = ()
) -> Reads:
    """Return what an asset reads, or raise an error if Dagster has no record of it.

    Args:
        instance: Dagster instance.
        asset_key: The asset.
        fix: How to fix it if the name is right, but the asset has not run yet.
        also: Further assets that the operator may mean.

    Raises:
        ConfigError: The asset does not exist in Dagster, or Dagster has no record of an offset range that it read.
    """
    found = reads_of(instance, asset_key)
    if found is not None:
        return found
    if not instance.has_asset_key(asset_key):
        raise unknown_asset(asset_key, {*instance.get_asset_keys(), *also}, fix=fix)
    shown = asset_key.to_user_string()
    msg = f"Dagster has no record of a topic that asset {shown} has read"
    raise ConfigError(msg, fix=fix, asset=shown)


def unknown_asset(asset_key: dg.AssetKey, known: Iterable[dg.AssetKey], *, fix: str) -> ConfigError:
    """Return the error for an unknown asset, with the names of similar assets.

    Args:
        asset_key: The unknown asset.
        known: The known assets.
        fix: How to fix it if the name is right.
    """
    shown = asset_key.to_user_string()
    names = sorted(key.to_user_string() for key in known)
    # An operator may have left out the prefix of the key.
    same_end = [name for name in names if name.rpartition("/")[2] == asset_key.path[-1]]
    near = list(dict.fromkeys([*same_end, *get_close_matches(shown, names, n=_NEAR)]))[:_NEAR]
    msg = f"asset {shown!r} does not exist in Dagster" + (f"; similar names: {', '.join(near)}" if near else "")
    return ConfigError(msg, fix=f"correct the name; {fix}", asset=shown)


def _group_of(last: dg.AssetMaterialization | None) -> str | None:
    """Return the group that the last materialization names; None if there is none."""
    found = None if last is None else stored_metadata(last.metadata).get(CONSUMER_GROUP)
    return None if found is None else str(found.value)
