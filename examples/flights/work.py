"""Materialize the platform's assets in this process, one slice after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from examples.flights.interrupts import Interrupted, ignore_signals
from examples.flights.progress import PartitionProgress, Step
from kpipe_platform import KpipeError, kafka_partitions
from kpipe_platform.demo.assets import ALL, carrier_delays, flights_enriched
from kpipe_platform.demo.topics import FLIGHTS, PARTITIONS
from kpipe_platform.resources._compat import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    InstanceRef,
)

# Dagster's event log on the console would hide the progress of the job.
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def dagster_instance(home: Path) -> dg.DagsterInstance:
    """Return the Dagster instance of a folder, without telemetry. Create it if it does not exist."""
    home.mkdir(parents=True, exist_ok=True)
    ref = InstanceRef.from_dir(str(home), overrides={"telemetry": {"enabled": False}})
    return dg.DagsterInstance.from_ref(ref)


class Work:
    """Materializes assets.

    Args:
        resources: The platform's resources.
        instance: The Dagster instance.

    Attributes:
        materializations: Number of materializations so far.
    """

    def __init__(self, resources: Mapping[str, Any], instance: dg.DagsterInstance) -> None:
        self._resources = dict(resources)
        self._instance = instance
        self.materializations = 0

    def materialize(self, *assets: dg.AssetsDefinition, partition: str | None = None) -> dict[str, Any]:
        """Materialize assets in one run.

        Returns:
            The metadata of the last one.

        Raises:
            KpipeError: The run failed; offsets did not move.
            Interrupted: A stop signal was received.
        """
        return self._materialize(assets, partition_key=partition)[-1]

    def _materialize(self, assets: Sequence[dg.AssetsDefinition], **run: Any) -> list[dict[str, Any]]:
        """Materialize assets in one run, with further arguments of `dagster.materialize`.

        Returns:
            The metadata of each materialization.

        Raises:
            KpipeError: The run failed; offsets did not move.
            Interrupted: A stop signal was received.
        """
        try:
            result = dg.materialize(
                ALL,
                selection=list(assets),
                resources=self._resources,
                instance=self._instance,
                run_config=_QUIET,
                **run,
            )
        except dg.DagsterExecutionInterruptedError:
            ignore_signals()
            raise Interrupted from None
        except Exception as error:
            known = kpipe_error(error)
            if known is None:
                raise
            raise known from error
        events = result.get_asset_materialization_events()
        self.materializations += len(events)
        return [{name: value.value for name, value in event.materialization.metadata.items()} for event in events]

    def enrich(self, step: Step) -> None:
        """Materialize all partitions of the flights in one run, which takes a slice of each, until the lag is zero."""
        first, *_, last = kafka_partitions(FLIGHTS, PARTITIONS).get_partition_keys()
        tags = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}
        self._catch_up(step, flights_enriched, tags=tags)

    def summarize_delays(self, step: Step) -> None:
        """Materialize slices of the enriched flights until the lag is zero. Needs a topic without open transactions."""
        self._catch_up(step, carrier_delays)

    def _catch_up(self, step: Step, asset: dg.AssetsDefinition, **run: Any) -> None:
        with PartitionProgress(step):
            while any(each["kpipe/lag"] for each in self._materialize([asset], **run)):
                pass


def kpipe_error(error: BaseException | None) -> KpipeError | None:
    """Return the kpipe error that an exception of Dagster wraps; None if there is none."""
    while error is not None:
        if isinstance(error, KpipeError):
            return error
        error = getattr(error, "user_exception", None) or error.__cause__ or error.__context__
    return None
