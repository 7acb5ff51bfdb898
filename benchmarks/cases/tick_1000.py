"""Ticks of the offset sensor over 1 to 1,000 partitions."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dagster as dg
from pyspark.sql import DataFrame

import kpipe_platform as kp
from benchmarks.measure import Bench, Contest, Problems, Ratio, Run, stopwatch
from benchmarks.orders import FIELDS, Orders
from benchmarks.topics import Sources, filled
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.partitions.runs import RequestedRange, requested_ranges

_FEW, _MANY = 10, 1_000
_PARTITIONS = (1, _FEW, 100, _MANY)
_TICKS_A_RUN = 5


class Tick1000:
    """The figure ``tick_1000``, of 1,000 partitions over 10: seconds over seconds, so smaller is better."""

    name = "tick_1000"
    title = "time of a sensor tick over 1,000 partitions, over 10"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        with ExitStack() as stack:
            # No instance in memory: a sensor finds its partitions through a reference to its instance.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kpipe-bench-"))
            instance = stack.enter_context(dg.DagsterInstance.local_temp(folder))

            def ticks(partitions: int) -> Ticks:
                servers = bench.bootstrap_servers
                source = stack.enter_context(filled(servers, Orders(partitions), partitions=partitions))
                return Ticks(f"partitions_{partitions}", servers, source, partitions, instance)

            sizes = (_FEW, _MANY) if bench.quick else _PARTITIONS
            contestants = {partitions: ticks(partitions) for partitions in sizes}
            yield Contest(
                self.name,
                list(contestants.values()),
                (Ratio("tick_1000", contestants[_MANY].name, contestants[_FEW].name, of="time", better="smaller"),),
                2 * bench.turns,
                bench.warm_up_turns,
                unit="ticks",
                figures={"tick_s": lambda rate: 1 / rate},
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log line of each tick: Dagster creates a new logger for each tick, so no level applies to it."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


class Ticks:
    """Some ticks over a topic with a new record in each partition; the runs that they ask for are not started.

    Args:
        name: Key in the report.
        bootstrap_servers: The broker.
        source: The topic.
        partitions: Its partitions; a run may take all of them.
        instance: The Dagster instance; the partitions are registered there.
    """

    def __init__(
        self, name: str, bootstrap_servers: str, source: str, partitions: int, instance: dg.DagsterInstance
    ) -> None:
        self.name = name
        self._source = source
        self._partitions = partitions
        self._instance = instance
        kp.register_kafka_partitions(instance, source, range(partitions))
        connection = kp.KafkaConnection(bootstrap_servers=bootstrap_servers)
        self._manager = kp.KafkaIOManager(
            source=kp.KafkaSource(connection=connection, group_prefix=source),
            destination=kp.KafkaDestination(connection=connection),
            # Never started: a tick has no use for Spark.
            spark=kp.SparkEngine(),
        )
        orders = kp.kafka_topic_asset(source, name="orders", value_codec=kp.JsonCodec(FIELDS))

        @kp.kafka_asset(
            source=orders,
            topic=kp.KafkaTopic(f"{source}.out", key_column="customer"),
            scaling=kp.PartitionScaling(execution_mode=kp.ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS),
            backfill_policy=dg.BackfillPolicy.single_run(),
        )
        def copied(orders: DataFrame) -> DataFrame:
            return orders

        self._sensor = kp.kafka_offset_sensor(copied, partitions_per_run=_MANY)
        self._definitions = dg.Definitions(
            assets=[orders, copied], sensors=[self._sensor], resources={"kafka_io_manager": self._manager}
        )

    def run(self, turn: int) -> Run:
        del turn  # nothing is written
        with _quiet():
            elapsed = stopwatch()
            ticks = [self._tick() for _ in range(_TICKS_A_RUN)]
            seconds = elapsed()
        return Run(seconds, _TICKS_A_RUN, lambda: [text for tick in ticks for text in self._problems(tick)])

    def _tick(self) -> list[dg.RunRequest]:
        with dg.build_sensor_context(
            instance=self._instance,
            instance_ref=self._instance.get_ref(),
            definitions=self._definitions,
            resources={"kafka_io_manager": self._manager},
        ) as context:
            return list(self._sensor.evaluate_tick(context).run_requests or [])

    def _problems(self, requests: list[dg.RunRequest]) -> Problems:
        requested: dict[Partition, RequestedRange] = {}
        for request in requests:
            requested |= requested_ranges(request.tags)
        expected = {(self._source, number): RequestedRange(0, 1, 0) for number in range(self._partitions)}
        if requested == expected:
            return []
        return [f"{self._source}: a tick requested {len(requested):,} of {self._partitions:,} partitions"]
