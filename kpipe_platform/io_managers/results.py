"""Check an asset's return value, and report its slices to Dagster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform.dead_letters import Distribution
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.metadata import describe, materialization_metadata
from kpipe_platform.io_managers.step import topic_of
from kpipe_platform.metadata_keys import MULTI_ASSET
from kpipe_platform.partitions.groups import outputs_of
from kpipe_platform.resources._compat import NoValueSentinel
from kpipe_platform.slices.plan.ranges import resumption_of
from kpipe_platform.slices.report import RunSummary
from kpipe_platform.slices.target import SliceTarget


def check_rows(asset: str, output: Any) -> Any:
    """Return the output of an asset's function, after checking that it can be rows.

    Raises:
        ConfigError: The output is None or a Dagster result object, which would be stored as if it were the rows.
    """
    if output is None:
        msg = f"asset {asset} returned None instead of rows"
        raise ConfigError(
            msg, fix="return the rows (is a `return` statement missing?); if there are none, return an empty DataFrame"
        )
    if output is NoValueSentinel or isinstance(output, dg.MaterializeResult | dg.ObserveResult | dg.Output):
        name = dg.MaterializeResult.__name__ if output is NoValueSentinel else type(output).__name__
        msg = f"asset {asset} returned a {name}, which contains no rows"
        raise ConfigError(
            msg, fix="return the rows; to add metadata, call context.add_output_metadata(...) in the function"
        )
    return output


def outputs_by_name(result: Any, names: Sequence[str], asset: str) -> dict[str, Any]:
    """Return the outputs of a ``@kafka_multi_asset``'s function by name.

    Args:
        result: What the function returned: a mapping by output name, a named tuple, or a tuple in the outputs' order.
        names: Names of the outputs.
        asset: The asset, for messages.

    Raises:
        ConfigError: It is none of these, or an output is missing or unknown.
    """
    if isinstance(result, tuple) and hasattr(result, "_asdict"):
        result = result._asdict()
    elif isinstance(result, tuple) and len(result) == len(names):
        result = dict(zip(names, result, strict=True))
    fix = f"return a dict with the keys {', '.join(map(repr, names))}, or a tuple in this order"
    if not isinstance(result, Mapping):
        shown = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        msg = f"asset {asset} returned {shown} instead of the rows of its {len(names)} outputs"
        raise ConfigError(msg, fix=fix)
    unknown = [str(name) for name in result if name not in names]
    missing = [name for name in names if name not in result]
    if unknown or missing:
        problems = [f"has no output {name!r}" for name in missing] + [f"has an unknown output {u!r}" for u in unknown]
        msg = f"the result of asset {asset} {', '.join(problems)}"
        raise ConfigError(msg, fix=f"{fix}; if an output has no rows, return an empty DataFrame")
    return {name: result[name] for name in names}


def metadata_by_asset(
    context: dg.OutputContext, summary: RunSummary, provenance: Distribution
) -> dict[dg.AssetKey, dict[str, Any]]:
    """Return the metadata of each asset that the step materializes. Those of a multi-asset differ in their topics."""
    assets = context.step_context.assets_def
    outputs = {} if assets is None else outputs_of(assets)
    if assets is None or not outputs:
        return {context.asset_key: materialization_metadata(summary, provenance)}
    topics = {key: topic_of(assets.metadata_by_key[key], key).name for key in outputs.values()}
    first = {MULTI_ASSET: dg.MetadataValue.text(next(iter(topics)).to_user_string())}
    return {key: materialization_metadata(summary, provenance, topic) | first for key, topic in topics.items()}


def materializations(
    context: dg.OutputContext, partition: str | None, summary: RunSummary, provenance: Distribution
) -> Iterator[dg.DagsterEvent]:
    """Create materialization events that handle_output yields itself, for some partitions or for a failed run."""
    for key, metadata in metadata_by_asset(context, summary, provenance).items():
        event = dg.AssetMaterialization(asset_key=key, partition=partition, metadata=metadata)
        yield dg.DagsterEvent.asset_materialization(context.step_context, event)


def warn_left_out(context: dg.OutputContext, asset: str, target: SliceTarget) -> None:
    """Warn in each run about partitions that no run reads. Their records are not in any count."""
    for topic, numbers in target.left_out.items():
        context.log.warning(
            "topic %s: no run reads partition(s) %s, because asset %s has no Dagster partitions for them. Partition "
            "the asset with kafka_partitions(%r). If it already is, observe the topic asset or turn on the sensor: "
            "both register new partitions",
            topic,
            ", ".join(map(str, numbers)),
            asset,
            topic,
        )


def log_summary(context: dg.OutputContext, summary: RunSummary) -> None:
    """Log one or two lines for any number of slices, because Dagster stores each log line as an event."""
    if not summary.slices:
        return
    facts = describe(summary)
    context.log.info(
        "%s: read %s, written %s, dead letters %s, skipped %s, in %s s",
        *(facts[name] for name in ("slice", "read", "written", "dead_letters", "skipped", "seconds")),
    )
    if summary.resumed and summary.last is not None:
        context.log.warning("%s", resumption_of(summary.last.slice.group, summary.resumed))
