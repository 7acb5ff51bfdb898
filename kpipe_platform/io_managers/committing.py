"""Offsets stored after any other IO manager has stored its output."""

# No postponed annotations here: Dagster reads the type of a resource dependency when the class is made.

import inspect
from collections.abc import Iterator
from typing import Any

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers import ledger
from kpipe_platform.io_managers.feed import StagedFeeds
from kpipe_platform.io_managers.kafka import StoresOffsets
from kpipe_platform.io_managers.outputs import emit_feeds, emit_plain
from kpipe_platform.io_managers.step import step_id
from kpipe_platform.resources.known_names import KnownNames


class OffsetCommittingIOManager(KnownNames, dg.ConfigurableIOManager, StoresOffsets):
    """Stores a Kafka-reading asset's output by another IO manager, then its dead letters, then the offsets.

    At least once: when the run dies between the inner store and the offsets, the slice is taken again. An inner IO
    manager that names its output after ``current_slice()`` overwrites what was left, and so stores each record once.

    Args:
        inner: The IO manager that stores and loads the asset.
    """

    inner: dg.ResourceDependency[dg.IOManager]

    def load_input(self, context: dg.InputContext) -> Any:
        """Load by the inner IO manager."""
        return self.inner.load_input(context)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> Iterator[Any]:  # type: ignore[override]
        """Store by the inner IO manager, then dead letters, then offsets.

        Raises:
            ConfigError: The step read no Kafka topic.
            Exception: Whatever the inner IO manager raises; offsets are unmoved.
        """

        def store(output: Any) -> None:
            _drain(self.inner.handle_output(context, output))

        if isinstance(obj, StagedFeeds):
            yield from emit_feeds(context, obj, topic=None, store=store)
            return
        pipelines = ledger.pipelines(step_id(context.step_context))
        if not pipelines:
            msg = f"asset {context.asset_key.to_user_string()} read no Kafka topic, so there are no offsets to store"
            raise ConfigError(msg, fix="use the inner IO manager itself for this asset")
        yield from emit_plain(context, obj, pipelines[0], topic=None, store=store)


def _drain(result: Any) -> None:
    # An IO manager may be a generator of events; the inner one's are its own business, but its code must run.
    if inspect.isgenerator(result):
        for _ in result:
            pass
