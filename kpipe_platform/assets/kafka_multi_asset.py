"""``@kafka_multi_asset``: a stage with several outputs, each with its own topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform.assets.kafka_asset import DeclaredStage, check_sources, joined_metadata, run_limits, stage_decorator
from kpipe_platform.assets.source import Source, sources_of
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.codecs.topics import require_distinct
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.admin.groups import group_name
from kpipe_platform.metadata_keys import MULTI_ASSET
from kpipe_platform.partitions.pools import kafka_pool
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.resources.scaling import PartitionScaling

# Arguments of ``dagster.AssetOut``, which each output gets. All others are those of ``dagster.multi_asset``.
_OF_OUTPUTS = ("automation_condition", "owners", "tags", "kinds", "code_version", "freshness_policy")


def kafka_multi_asset(
    *,
    source: Source | Sequence[Source],
    outs: Mapping[str, KafkaTopic],
    on_fault: FaultAction | str | FaultPolicies | None = None,
    isolate: bool | None = None,
    max_dead_letter_ratio: float | None = None,
    min_dead_letters: int | None = None,
    partitioned: bool = True,
    scaling: PartitionScaling | None = None,
    max_slices: int | None = 1,
    max_duration_s: float | None = None,
    linger_s: float | None = None,
    io_manager_key: str = "kafka_io_manager",
    ins: Mapping[str, dg.AssetIn] | None = None,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    pool: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    **asset_kwargs: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Declare several assets that one stage makes of a slice, each with its own topic.

    The outputs of a slice, its dead letters and its offsets are written in one transaction. The stage returns the rows
    of each output: a dict by output name, a named tuple, or a tuple in the order of ``outs``. Rows have the same types
    as in ``kafka_asset``. An output without rows is an empty DataFrame.

    All outputs are materialized together. The first output names the consumer group: sensors, pauses, checks and
    commands that need an asset take the decorated function or the key of the first output.

    Args:
        source: The topic asset(s) to read, as for ``kafka_asset``.
        outs: The topic of each output by the output's name, which is also the name of its asset. A name has only
            letters, digits and underscores.
        on_fault: As for ``kafka_asset``. If the action applies to one output of a record, it applies to all of them.
        isolate: As for ``kafka_asset``.
        max_dead_letter_ratio: As for ``kafka_asset``.
        min_dead_letters: As for ``kafka_asset``.
        partitioned: As for ``kafka_asset``.
        scaling: As for ``kafka_asset``.
        max_slices: As for ``kafka_asset``.
        max_duration_s: As for ``kafka_asset``.
        linger_s: As for ``kafka_asset``.
        io_manager_key: Resource key of the KafkaIOManager of all outputs. Default ``kafka_io_manager``.
        ins: AssetIn for other inputs, for example ``table_input()``.
        name: Name of the operation; None: the function's name.
        key_prefix: Prefix of the asset keys.
        pool: As for ``kafka_asset``; None: ``kafka_pool`` of the first output's key.
        metadata: Further metadata of each asset.
        **asset_kwargs: Further arguments of ``dagster.multi_asset``, and ``automation_condition``, ``owners``,
            ``tags``, ``kinds``, ``code_version`` and ``freshness_policy`` for each output.

    Raises:
        ConfigError: The function has no parameter for a source, two outputs have the same topic, or an argument is
            invalid.
    """
    where = "@kafka_multi_asset"
    sources = sources_of(source, f"{where}(source=...)")
    check_sources(where, sources)
    if not isinstance(outs, Mapping) or not all(isinstance(topic, KafkaTopic) for topic in outs.values()):
        msg = f"{where}(outs={outs!r}): expected a topic for each output"
        raise ConfigError(msg, fix='set outs={"OUTPUT": KafkaTopic("name", ...), ...}')
    for output in outs:
        if not isinstance(output, str) or not re.fullmatch(r"[A-Za-z0-9_]+", output):
            msg = f"{where}(outs=...): {output!r} is not a name for an output"
            raise ConfigError(
                msg, fix="use letters, digits and underscores; key_prefix= sets a prefix of the asset keys"
            )
    require_distinct(f"{where}(outs=...)", outs.values())
    if asset_kwargs.get("can_subset"):
        msg = f"{where}(can_subset=True): the outputs of a slice are written in one transaction"
        raise ConfigError(msg, fix="remove can_subset=, or declare separate assets with @kafka_asset")
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
    keys = {output: dg.AssetKey([*prefix, output]) for output in outs}
    leader = next(iter(keys.values()))
    # Validate when the asset is defined, not in the first run.
    group_name("", leader.path)

    def make(declared: DeclaredStage) -> dg.AssetsDefinition:
        arguments = declared.arguments
        of_outputs = {each: arguments.pop(each) for each in _OF_OUTPUTS if each in arguments}
        description = arguments.pop("description", None) or declared.doc
        made: dg.AssetsDefinition = dg.multi_asset(
            name=name or declared.name,
            pool=pool or kafka_pool(leader),
            ins=declared.inputs,
            outs={
                output: dg.AssetOut(
                    key=keys[output],
                    dagster_type=dg.Any,
                    description=description,
                    io_manager_key=io_manager_key,
                    metadata=joined_metadata(
                        where,
                        {**topic.as_metadata(), MULTI_ASSET: leader.to_user_string(), **declared.metadata},
                        metadata,
                    ),
                    **{"kinds": {"kafka", "spark"}, **of_outputs},
                )
                for output, topic in outs.items()
            },
            description=description,
            **arguments,
        )(declared.compute)
        return made

    return stage_decorator(
        where,
        sources,
        make,
        on_fault=on_fault,
        isolate=isolate,
        max_dead_letter_ratio=max_dead_letter_ratio,
        min_dead_letters=min_dead_letters,
        partitioned=partitioned,
        scaling=scaling,
        limits=run_limits(where, max_slices, max_duration_s, linger_s),
        ins=ins or {},
        asset_kwargs=asset_kwargs,
        outputs=tuple(outs),
    )
