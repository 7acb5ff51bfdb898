"""A process of its own that works on every partition in turn, a run after a run, until it is ended.

Arguments: servers, folder of its Dagster instance, and ``follow``, or ``finish`` to end when it has caught up. What
becomes of each run is a line of standard output.
"""

from __future__ import annotations

import sys
from itertools import cycle
from pathlib import Path

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._utils.interrupts import setup_interrupt_handlers
from pyspark.sql import functions as F

from kpipe_platform import (
    FaultAction,
    JsonCodec,
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    SparkEngine,
    TextCodec,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.errors import EngineUnavailableError, TransientError
from kpipe_platform_tests.io_managers.conftest import ORDER

SOURCE, TARGET, DEAD_LETTERS, PREFIX = "orders", "enriched", "orders.dlq", "chaos"
GROUP = f"{PREFIX}.enriched"
PARTITIONS = 3
ENGINE_GONE = 3
"""Exit code where a new process is needed for a new engine."""
NO_MORE_RUNS = "no-more-runs"
"""File in the folder of the Dagster instance."""

orders = kafka_topic_asset(
    SOURCE, value_codec=JsonCodec(ORDER), key_codec=TextCodec(), partitions=PARTITIONS, name="orders"
)


@kafka_asset(
    source=orders,
    topic=KafkaTopic(TARGET, value_codec=JsonCodec()),
    on_fault=FaultAction.DEAD_LETTER,
    max_slices=3,
)
def enriched(orders):  # type: ignore[no-untyped-def]
    return orders.withColumn("amount", F.col("amount") * 2)


def manager_of(servers: str) -> KafkaIOManager:
    """The IO manager; it waits for brokers for some seconds, then the run fails."""
    connection = KafkaConnection(bootstrap_servers=servers, request_timeout_s=10)
    return KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix=PREFIX),
        destination=KafkaDestination(connection=connection, delivery_timeout_s=20),
        dead_letter=KafkaDeadLetterDestination(connection=connection),
        spark=SparkEngine(master="local[2,4]"),
    )


def main(servers: str, folder: str, how: str) -> int:
    # As Dagster's own run workers do: SIGTERM interrupts.
    setup_interrupt_handlers()
    manager = manager_of(servers)
    with dg.DagsterInstance.local_temp(folder) as instance:
        for number in cycle(range(PARTITIONS)):
            # A run that is as good as over takes no notice of being interrupted, and a run worker would end with it.
            if (Path(folder) / NO_MORE_RUNS).exists():
                say("interrupted")
                return 0
            try:
                if how == "finish" and not any(manager.source.lag(GROUP, SOURCE).values()):
                    return 0
                dg.materialize(
                    [orders, enriched],
                    selection=[enriched],
                    partition_key=str(number),
                    instance=instance,
                    resources={"kafka_io_manager": manager},
                )
            except TransientError as error:
                # What a sensor would ask for again.
                say(f"{type(error).__name__}: {error}")
                if isinstance(error, EngineUnavailableError):
                    return ENGINE_GONE
            except (DagsterExecutionInterruptedError, KeyboardInterrupt):
                say("interrupted")
                return 0
            else:
                say("done")
    return 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
