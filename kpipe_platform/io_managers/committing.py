"""Offsets stored after another IO manager has stored its output."""

# No postponed annotations here: Dagster reads the type of a resource dependency when the class is made.

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from kpipe_platform.codecs.topic import TOPIC
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.deferred import emit_deferred
from kpipe_platform.io_managers.kafka import StoresOffsets
from kpipe_platform.io_managers.open_reads import steps_of
from kpipe_platform.io_managers.plain import emit_plain
from kpipe_platform.io_managers.step import step_id
from kpipe_platform.resources._compat import DbIOManager
from kpipe_platform.resources.known_names import KnownNames
from kpipe_platform.slices.values import DeferredStage


class OffsetCommittingIOManager(KnownNames, dg.ConfigurableIOManager, StoresOffsets):
    """Stores a Kafka-reading asset's output by another IO manager, then its dead letters, then the offsets.

    At least once: when the run dies between the inner store and the offsets, the slice is taken again. An inner IO
    manager that names its output after ``current_slice()`` overwrites what was left, and so stores each record once.

    The inner IO manager is called once a slice, each time with that slice's rows, and has to keep those of earlier
    slices. Dagster's own (``FilesystemIOManager``, those of object stores and databases) replace a partition's output
    instead: with one of them each run warns that only the last slice is kept, and ``max_slices`` other than 1 is
    refused.

    Args:
        inner: The IO manager that stores and loads the asset.
    """

    inner: dg.ResourceDependency[dg.IOManager]

    def load_input(self, context: dg.InputContext) -> Any:
        """Load by the inner IO manager."""
        return self.inner.load_input(context)

    def check_asset(self, asset: str, metadata: Mapping[str, Any]) -> None:
        """Refuse an inner IO manager that is one of kpipe's, and an asset that declares a topic to write."""
        if isinstance(self.inner, StoresOffsets):
            msg = f"asset {asset}: the inner IO manager is {type(self.inner).__name__}, which stores offsets itself"
            raise ConfigError(msg, fix="use it without OffsetCommittingIOManager")
        if TOPIC in metadata:
            msg = f"asset {asset} declares a topic to write, and {type(self).__name__} stores its output elsewhere"
            raise ConfigError(msg, fix="leave topic= out, or use a KafkaIOManager")

    def handle_output(self, context: dg.OutputContext, obj: Any) -> Iterator[Any]:  # type: ignore[override]
        """Store by the inner IO manager, then dead letters, then offsets.

        Raises:
            ConfigError: The step read no Kafka topic, or takes several slices that the inner IO manager would not keep.
            Exception: Whatever the inner IO manager raises; offsets are unmoved.
        """

        def store(output: Any) -> None:
            _drain(self.inner.handle_output(context, output))

        if _replaces(self.inner):
            name = type(self.inner).__name__
            if isinstance(obj, DeferredStage) and obj.limits.max_slices != 1:
                msg = (
                    f"asset {context.asset_key.to_user_string()} takes several slices in a run, of which {name} would "
                    "keep the last only: it replaces what it has stored of a partition"
                )
                raise ConfigError(
                    msg, fix="max_slices=1, or an inner IO manager that names its output after current_slice()"
                )
            context.log.warning(
                "%s replaces what it has stored of a partition: of %s only the slice of this run is kept",
                name,
                context.asset_key.to_user_string(),
            )
        if isinstance(obj, DeferredStage):
            yield from emit_deferred(context, obj, topic=None, store=store)
            return
        steps = steps_of(step_id(context.step_context))
        if not steps:
            msg = f"asset {context.asset_key.to_user_string()} read no Kafka topic, so there are no offsets to store"
            raise ConfigError(msg, fix="use the inner IO manager itself for this asset")
        yield from emit_plain(context, obj, steps[0], topic=None, store=store)


def _replaces(inner: dg.IOManager) -> bool:
    """Whether it is known to replace what it has stored of a partition: those of Dagster and its integrations.

    A subclass of somebody else may name its files after the slice.
    """
    if isinstance(inner, dg.UPathIOManager):
        return type(inner).__module__.startswith("dagster")
    return isinstance(inner, DbIOManager | dg.InMemoryIOManager)


def _drain(result: Any) -> None:
    # An IO manager may be a generator of events; the inner one's are its own business, but its code must run.
    if inspect.isgenerator(result):
        for _ in result:
            pass
