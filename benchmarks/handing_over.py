"""Records from Kafka to Python through Spark, where nothing becomes of them: the limit of a writer in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from benchmarks.measure import Problems, Run, stopwatch
from benchmarks.orders import Orders
from benchmarks.work import RawCopy
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.spark.source.reader import read_ranges


class HandingOver:
    """One task reads a partition as kpipe does, and Python looks at no more than how many records and headers came.

    Args:
        name: Key in the report.
        work: Whose source is read, with the columns that its stage takes; of one partition.
        session: The warm Spark session, kpipe's own.
    """

    def __init__(self, name: str, work: RawCopy, session: SparkSession) -> None:
        self.name = name
        self._work = work
        self._session = session
        self._connection = ConnectionSettings(bootstrap_servers=work.bootstrap_servers)

    def run(self, turn: int) -> Run:
        del turn  # nothing is written
        work = self._work
        everything = OffsetRange(work.source, 0, 0, work.orders.count)
        elapsed = stopwatch()
        rows = read_ranges(
            self._session, self._connection, [everything], isolation="read_committed", group=self.name, parts=1
        )
        came = work.by_hand(rows).mapInArrow(_counted, "records long, headers long").first()
        seconds = elapsed()
        found = (0, 0) if came is None else (came["records"], came["headers"])
        return Run(seconds, work.orders.count, lambda: self._problems(found))

    def _problems(self, found: tuple[int, int]) -> Problems:
        count = self._work.orders.count
        expected = count, count * len(Orders.headers(0)) if self._work.headers else 0
        if found == expected:
            return []
        return [f"{self._work.source}: {found} records and headers arrived, expected {expected}"]


def _counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    records = headers = 0
    for batch in batches:
        records += batch.num_rows
        if "headers" in batch.schema.names:
            headers += pc.sum(batch.column("headers").value_lengths()).as_py() or 0
    yield pa.RecordBatch.from_pydict({"records": [records], "headers": [headers]})
