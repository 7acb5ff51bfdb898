"""Plain Spark as contestants: a streaming query and a batch job, from its Kafka source to its Kafka sink."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping

from pyspark.sql import SparkSession

from benchmarks.measure import Problems, Run, stopwatch
from benchmarks.topics import TOPIC, run_tag
from benchmarks.work import Work
from kpipe_platform.testing.topics import create_topic, delete_topic

# What kpipe's destination does by default: without it the sink sends small batches, uncompressed.
LZ4 = {"kafka.compression.type": "lz4", "kafka.linger.ms": "20", "kafka.batch.size": "262144"}


class _SparkAlone(ABC):
    """At least once; what does not decode is left out.

    Args:
        name: Key in the report.
        work: What to do.
        session: The warm Spark session, kpipe's own.
        options: Further options of the sink.
    """

    def __init__(
        self, name: str, work: Work, session: SparkSession, *, options: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._work = work
        self._session = session
        self._sink = {"kafka.bootstrap.servers": work.bootstrap_servers, **(options or {})}
        self._source = {
            "kafka.bootstrap.servers": work.bootstrap_servers,
            "subscribe": work.source,
            "startingOffsets": "earliest",
            "includeHeaders": str(work.headers).lower(),
        }

    def run(self, turn: int) -> Run:
        work = self._work
        out = f"{run_tag(work.source, self.name, turn)}.out"
        create_topic(work.bootstrap_servers, out, partitions=work.partitions, config=TOPIC)
        with tempfile.TemporaryDirectory(prefix="kpipe-bench-") as folder:
            elapsed = stopwatch()
            self._copy({**self._sink, "topic": out}, folder)
            seconds = elapsed()
        return Run(seconds, work.orders.count, lambda: self._problems(out))

    @abstractmethod
    def _copy(self, sink: Mapping[str, str], folder: str) -> None:
        """Do the work."""

    def _problems(self, out: str) -> Problems:
        problems = self._work.output_problems(out)
        delete_topic(self._work.bootstrap_servers, out)
        return problems


class StructuredStreaming(_SparkAlone):
    """A streaming query with the trigger ``availableNow``, from the topic's start to its end."""

    def _copy(self, sink: Mapping[str, str], folder: str) -> None:
        rows = self._session.readStream.format("kafka").options(**self._source).load()
        query = (
            self._work.by_hand(rows)
            .writeStream.format("kafka")
            .options(**sink)
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


class SparkBatch(_SparkAlone):
    """A batch read and a batch write; it remembers nothing of what it has read."""

    def _copy(self, sink: Mapping[str, str], folder: str) -> None:
        rows = self._session.read.format("kafka").options(**self._source).load()
        self._work.by_hand(rows).write.format("kafka").options(**sink).save()
