"""Raw copies of records of several sizes, the same number of bytes of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import LargeOrders
from benchmarks.spark_alone import StructuredStreaming
from benchmarks.topics import Sources, filled
from benchmarks.work import RawCopy

# 100 MB in full size.
_BYTES_A_RECORD_OF_OTHER_CASES = 100


class RecordSize:
    """A figure such as ``size_10kb``: megabytes a second, and memory, of values of one size.

    Args:
        name: The case, and its figure.
        value_bytes: Size of a value.
    """

    full_only = True

    def __init__(self, name: str, value_bytes: int) -> None:
        self.name = name
        self.title = f"raw copy of values of {value_bytes:,} bytes, over Structured Streaming"
        self._value_bytes = value_bytes

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        del sources  # no other case has these records
        total = bench.records * _BYTES_A_RECORD_OF_OTHER_CASES
        orders, servers = LargeOrders(max(total // self._value_bytes, 1), self._value_bytes), bench.bootstrap_servers
        with filled(servers, orders) as source:
            engine, work = bench.engine(), RawCopy(servers, source, orders)
            yield Contest(
                self.name,
                (
                    Kpipe("kpipe", work, engine, memory=True),
                    StructuredStreaming("structured_streaming", work, engine.spark_session),
                ),
                (Ratio(self.name, "kpipe", "structured_streaming"),),
                bench.turns,
                bench.short_warm_up,
                figures={"mb_per_s": lambda rate: rate * self._value_bytes / 1e6},
            )
