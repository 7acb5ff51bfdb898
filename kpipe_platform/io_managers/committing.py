"""Commit offsets after another IO manager has stored the output."""

# No postponed annotations here: Dagster reads the type of a resource dependency when it creates the class.

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.deferred import emit_deferred
from kpipe_platform.io_managers.kafka import StoresOffsets
from kpipe_platform.io_managers.open_reads import steps_of
from kpipe_platform.io_managers.plain import emit_plain
from kpipe_platform.io_managers.step import step_id
from kpipe_platform.metadata_keys import TOPIC, TOPICS
from kpipe_platform.resources._compat import DbIOManager
from kpipe_platform.resources.known_names import KnownNames
from kpipe_platform.slices.values import DeferredStage


class OffsetCommittingIOManager(KnownNames, dg.ConfigurableIOManager, StoresOffsets):
    """Stores an asset's output with another IO manager, then its dead letters, then commits the Kafka offsets.

    Delivery is at least once: if the run dies after the inner store and before the commit, the next run takes the slice
    again. An inner IO manager that names its output after ``current_slice()`` overwrites the output of the failed
    attempt, and so stores each record once.

    The inner IO manager is called once per slice with that slice's rows, and must keep the rows of earlier slices.
    Dagster's own IO managers (``FilesystemIOManager``, those for object stores and databases) replace a partition's
    output instead. With one of them, each run warns that only the last slice is kept, and ``max_slices`` must be 1.

    Args:
        inner: The IO manager that stores and loads the asset.
    """

    inner: dg.ResourceDependency[dg.IOManager]

    def load_input(self, context: dg.InputContext) -> Any:
        """Load with the inner IO manager."""
        return self.inner.load_input(context)

    def check_asset(self, asset: str, metadata: Mapping[str, Any]) -> None:
        """Reject an inner IO manager that stores offsets itself, and an asset that declares a destination topic."""
        if isinstance(self.inner, StoresOffsets):
            msg = f"asset {asset}: the inner IO manager is {type(self.inner).__name__}, which stores offsets itself"
            raise ConfigError(msg, fix="use it directly, without OffsetCommittingIOManager")
        if TOPIC in metadata or TOPICS in metadata:
            msg = f"asset {asset} declares a destination topic, but {type(self).__name__} does not write to Kafka"
            raise ConfigError(msg, fix="remove topic=, or use a KafkaIOManager")

    def handle_output(self, context: dg.OutputContext, obj: Any) -> Iterator[Any]:  # type: ignore[override]
        """Store with the inner IO manager, then write dead letters, then commit offsets.

        Raises:
            ConfigError: The step read no Kafka topic, or processes several slices of which the inner IO manager keeps
                only the last.
            Exception: Any error of the inner IO manager; offsets are unchanged.
        """

        def store(output: Any) -> None:
            _drain(self.inner.handle_output(context, output))

        if _replaces(self.inner):
            name = type(self.inner).__name__
            if isinstance(obj, DeferredStage) and obj.limits.max_slices != 1:
                msg = (
                    f"asset {context.asset_key.to_user_string()} may process several slices per run, but {name} "
                    "overwrites a partition's output with each slice: only the last slice would be kept"
                )
                raise ConfigError(
                    msg, fix="set max_slices=1, or use an inner IO manager that names its output after current_slice()"
                )
            context.log.warning(
                "asset %s: %s overwrites a partition's output in each run, so only the slice of this run is kept",
                context.asset_key.to_user_string(),
                name,
            )
        if isinstance(obj, DeferredStage):
            yield from emit_deferred(context, obj, destination=None, store=store)
            return
        steps = steps_of(step_id(context.step_context))
        if not steps:
            msg = f"asset {context.asset_key.to_user_string()} read no Kafka topic, so there are no offsets to store"
            raise ConfigError(msg, fix="use the inner IO manager directly for this asset")
        yield from emit_plain(context, obj, steps[0], destination=None, store=store)


def _replaces(inner: dg.IOManager) -> bool:
    """Return whether an IO manager of Dagster or its integrations replaces a partition's stored output.

    False for third-party subclasses of ``UPathIOManager``, which may name their files after the slice.
    """
    if isinstance(inner, dg.UPathIOManager):
        return type(inner).__module__.startswith("dagster")
    return isinstance(inner, DbIOManager | dg.InMemoryIOManager)


def _drain(result: Any) -> None:
    # If the inner IO manager is a generator, iterate over it so that its code runs. Its events are dropped.
    if inspect.isgenerator(result):
        for _ in result:
            pass
