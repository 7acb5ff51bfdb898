"""A deployment in a process of its own: a Dagster instance, a sensor that shares partitions, and runs where it asks.

Usage: python -m kpipe_platform_tests.sensors.deployment SETTINGS, with the settings as JSON.

It takes commands on its standard input, a line each, and answers each with a line of JSON: ``tick`` asks the sensor and
starts nothing; ``work`` starts what it asks for. It ends, leaving the group in order, when its standard input does.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Any

import dagster as dg

from kpipe_platform import KafkaConnection, KafkaDestination, KafkaIOManager, KafkaSource, SparkEngine
from kpipe_platform.partitions.definition import register_kafka_partitions
from kpipe_platform.resources.ownership import PartitionOwnership
from kpipe_platform.resources.scaling import ExecutionMode, PartitionScaling, RebalanceMode
from kpipe_platform_tests.sensors.conftest import Sensing

SESSION_S = 6.0
"""The brokers take no shorter one."""


def sharing_manager(
    servers: str, prefix: str, mode: RebalanceMode, *, remote: str | None = None, **ownership: Any
) -> KafkaIOManager:
    """An IO manager whose source shares its partitions; without ``remote`` it takes the session of this process."""
    connection = KafkaConnection(bootstrap_servers=servers)
    scaling = PartitionScaling(
        execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS, max_concurrent_partitions=8, rebalance_mode=mode
    )
    # Long enough for a run of the other deployment on a slow machine, between two ticks of this one.
    shared = PartitionOwnership(**{"session_timeout_s": SESSION_S, "idle_timeout_s": 300.0, **ownership})
    return KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix=prefix, scaling=scaling, ownership=shared),
        destination=KafkaDestination(connection=connection),
        spark=SparkEngine(remote=remote),
    )


def keep(orders):  # type: ignore[no-untyped-def]
    return orders


def main(text: str) -> None:
    settings = json.loads(text)
    mode, how = RebalanceMode(settings["mode"]), settings["ownership"]
    manager = sharing_manager(settings["servers"], settings["prefix"], mode, remote=settings["engine"], **how)

    def produce(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    with dg.instance_for_test() as instance:
        sensing = Sensing(settings["source"], settings["target"], manager, instance, produce, keep)
        register_kafka_partitions(instance, sensing.source, range(settings["partitions"]))
        for command in map(str.strip, sys.stdin):
            with redirect_stdout(sys.stderr):
                made = sensing.tick()
                requests = made.run_requests or []
                worked = [sensing.start(request) for request in requests] if command == "work" else []
            answer = {
                "asked": [request.tags["kpipe/partitions"] for request in requests],
                "tags": [dict(request.tags) for request in requests],
                "succeeded": worked,
                "skipped": made.skip_message,
            }
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
