"""Check an asset's return value, and report its slices to Dagster."""

from __future__ import annotations

from typing import Any

import dagster as dg

from kpipe_platform.dead_letters import Distribution
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.metadata import describe, materialization_metadata
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


def materialization(
    context: dg.OutputContext, partition: str | None, summary: RunSummary, provenance: Distribution
) -> dg.DagsterEvent:
    """Create a materialization event that handle_output yields itself, for some partitions or for a failed run."""
    metadata = materialization_metadata(summary, provenance)
    event = dg.AssetMaterialization(asset_key=context.asset_key, partition=partition, metadata=metadata)
    return dg.DagsterEvent.asset_materialization(context.step_context, event)


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
