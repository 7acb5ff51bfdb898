"""kpipe as a contestant: a ``@kafka_asset``, materialized in-process over a whole topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from pyspark.sql import DataFrame

import kpipe_platform as kp
from benchmarks.measure import Problems, Run, stopwatch
from benchmarks.memory import PeakMemory
from benchmarks.topics import TOPIC, run_tag
from benchmarks.work import Work
from kpipe_platform.testing.topics import create_topic, delete_topic

_STEPS = ("plan", "spark", "open", "write", "commit")
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
_COUNTS = ("kpipe/records_read", "kpipe/records_written", "kpipe/dead_letters", "kpipe/records_skipped")


@dataclass(frozen=True)
class Topics:
    """Where one run writes to.

    Args:
        tag: What names the run; its consumer group begins with it.
        out: Topic of the outputs.
        dead_letters: Topic of the dead letters.
    """

    tag: str
    out: str
    dead_letters: str


class Kpipe:
    """One run is a whole ``dg.materialize``: plan, read, write, commit, report.

    Args:
        name: Key in the report.
        work: What to do.
        engine: The warm Spark session.
        delivery: As in ``KafkaDestination``.
        layout: How several partitions are taken: ``whole`` is an unpartitioned asset, all of them in one transaction;
            ``range`` is a partition-range run, each with its own Spark job and transaction, several at a time;
            ``each`` is a run for each of them, one after another.
        max_records: Offsets of a partition that are taken; None: all.
        memory: Whether to watch the memory of the processes.
        linger_s: As in ``@kafka_asset``: the run follows the stream until nothing came for so long.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        engine: kp.SparkEngine,
        *,
        delivery: Literal["exactly_once", "at_least_once"] = "exactly_once",
        layout: Literal["whole", "range", "each"] = "whole",
        max_records: int | None = None,
        memory: bool = False,
        linger_s: float | None = None,
    ) -> None:
        self.name = name
        self._work = work
        self._engine = engine
        self._delivery = delivery
        self._layout = layout
        self._max_records = max_records
        self._memory = memory
        self._linger_s = linger_s

    def run(self, turn: int) -> Run:
        topics = self.make_topics(turn)
        with PeakMemory() if self._memory else nullcontext() as memory:
            elapsed = stopwatch()
            found = self.materialize(topics)
            seconds = elapsed()
        steps: dict[str, float] = {}
        if len(found) == 1:
            # Partitions that are taken at the same time have steps at the same time.
            steps = steps_of(found[0])
            steps["dagster"] = max(seconds - sum(steps.values()), 0.0)
        counts = counts_of(found)
        extra = {} if memory is None else memory.peaks
        return Run(seconds, self._work.orders.count, lambda: self.problems(topics, counts), steps, extra)

    def make_topics(self, turn: int) -> Topics:
        """New topics for a turn, outside of its time."""
        work, tag = self._work, run_tag(self._work.source, self.name, turn)
        made = Topics(tag, f"{tag}.out", f"{tag}.dlq")
        create_topic(work.bootstrap_servers, made.out, partitions=work.partitions, config=TOPIC)
        create_topic(work.bootstrap_servers, made.dead_letters, config=TOPIC)
        return made

    def materialize(self, topics: Topics) -> list[Mapping[str, Any]]:
        """Execute the run or the runs, and return the metadata of each materialization."""
        source, asset = self._assets(topics.out)
        found: list[Mapping[str, Any]] = []
        with dg.DagsterInstance.ephemeral() as instance:
            for partition, tags in self._runs():
                result = dg.materialize(
                    [source, asset],
                    selection=[asset],
                    resources={"kafka_io_manager": self._io_manager(topics)},
                    partition_key=partition,
                    instance=instance,
                    run_config=_QUIET,
                    tags=tags,
                )
                found += [each.metadata for each in result.asset_materializations_for_node(asset.node_def.name)]
        return found

    def _runs(self) -> list[tuple[str | None, dict[str, str]]]:
        """Partition key and tags of each run."""
        last = self._work.partitions - 1
        if self._layout == "range":
            return [(None, {ASSET_PARTITION_RANGE_START_TAG: "0", ASSET_PARTITION_RANGE_END_TAG: str(last)})]
        if self._layout == "each" or last == 0:
            return [(str(number), {}) for number in range(last + 1)]
        return [(None, {})]

    def _assets(self, out: str) -> tuple[dg.AssetsDefinition, dg.AssetsDefinition]:
        work = self._work
        orders = kp.kafka_topic_asset(work.source, name="orders", value_codec=work.codec, partitions=work.partitions)
        scaling = kp.PartitionScaling(max_records=self._max_records)
        if self._layout == "range":
            mode = kp.ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS
            scaling = kp.PartitionScaling(max_records=self._max_records, execution_mode=mode)

        @kp.kafka_asset(
            source=orders,
            topic=work.target(out),
            on_fault=kp.FaultAction.DEAD_LETTER,
            partitioned=work.partitions == 1 or self._layout != "whole",
            scaling=scaling,
            backfill_policy=dg.BackfillPolicy.single_run() if self._layout == "range" else None,
            max_slices=1 if self._linger_s is None else None,
            linger_s=self._linger_s,
        )
        def copied(orders: DataFrame) -> DataFrame:
            return work.stage(orders)

        return orders, copied

    def _io_manager(self, topics: Topics) -> kp.KafkaIOManager:
        connection = self._work.connection
        return kp.KafkaIOManager(
            source=kp.KafkaSource(connection=connection, group_prefix=topics.tag, start="earliest"),
            destination=kp.KafkaDestination(connection=connection, delivery=self._delivery),
            dead_letter=kp.KafkaDeadLetterDestination(connection=connection, topic=topics.dead_letters),
            spark=self._engine,
        )

    def problems(self, topics: Topics, counts: Mapping[str, int]) -> Problems:
        """Return problems of the topics and of the counts in the metadata, and delete the topics."""
        work = self._work
        count, bad = work.orders.count, work.bad
        expected = dict(zip(_COUNTS, (count, count - bad, bad, 0), strict=True))
        problems = [f"the metadata contains {dict(counts)}, expected {expected}"] if counts != expected else []
        problems += work.output_problems(topics.out)
        problems += work.dead_letter_problems(topics.dead_letters)
        for topic in (topics.out, topics.dead_letters):
            delete_topic(work.bootstrap_servers, topic)
        return problems


def counts_of(materializations: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the sums of the counts in the metadata of materializations."""
    return {name: sum(int(each[name].value) for each in materializations) for name in _COUNTS}


def steps_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by step of one materialization, all its slices together."""
    rows = {record.data["step"]: record.data["seconds"] for record in metadata["kpipe/steps"].records}
    return {step: float(rows[step]) for step in _STEPS}
