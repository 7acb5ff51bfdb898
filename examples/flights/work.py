"""Materialize the platform's assets in this process, one slice after another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from examples.flights.interrupts import Interrupted, ignore_signals
from examples.flights.progress import Step
from kpipe_platform import KpipeError, kafka_partitions
from kpipe_platform.demo.assets import ALL, carrier_delays, flights_enriched
from kpipe_platform.demo.topics import FLIGHTS, PARTITIONS
from kpipe_platform.resources._compat import InstanceRef

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
        try:
            result = dg.materialize(
                ALL,
                selection=list(assets),
                partition_key=partition,
                resources=self._resources,
                instance=self._instance,
                run_config=_QUIET,
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
        return {name: value.value for name, value in events[-1].materialization.metadata.items()}

    def enrich(self, step: Step) -> None:
        """Materialize slices of each flights partition in turn until the lag is zero."""
        behind = list(kafka_partitions(FLIGHTS, PARTITIONS).get_partition_keys())
        while behind:
            for partition in list(behind):
                step.say(f"partition {partition}")
                metadata = self.materialize(flights_enriched, partition=partition)
                step.add(metadata["kpipe/records_read"])
                if metadata["kpipe/lag"] == 0:
                    behind.remove(partition)

    def summarize_delays(self, step: Step) -> None:
        """Materialize slices of the enriched flights until the lag is zero. Needs a topic without open transactions."""
        while True:
            metadata = self.materialize(carrier_delays)
            step.add(metadata["kpipe/records_read"])
            if metadata["kpipe/lag"] == 0:
                return


def kpipe_error(error: BaseException | None) -> KpipeError | None:
    """Return the kpipe error that an exception of Dagster wraps; None if there is none."""
    while error is not None:
        if isinstance(error, KpipeError):
            return error
        error = getattr(error, "user_exception", None) or error.__cause__ or error.__context__
    return None
