"""Avro with a schema registry: the work of ``json_1p``, and many schemas in one slice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.avro import avro_works
from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.spark_alone import StructuredStreaming
from benchmarks.topics import Sources

_MANY = 20


class Avro1p:
    """The figure ``avro_1p``: records a second over Structured Streaming with ``from_avro`` and ``to_avro``."""

    name = "avro_1p"
    title = "Avro enrich with a schema registry, 1 partition, over Structured Streaming"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        with avro_works(bench.bootstrap_servers, sources, bench.records, 1) as (work,):
            engine = bench.engine()
            yield Contest(
                self.name,
                (Kpipe("kpipe", work, engine), StructuredStreaming("structured_streaming", work, engine.spark_session)),
                (Ratio(self.name, "kpipe", "structured_streaming"),),
                bench.turns,
                bench.warm_up_turns,
            )


class AvroManyIds:
    """The figure ``avro_many_ids``: time of a slice with 20 schemas over that of a slice with one."""

    name = "avro_many_ids"
    title = f"time of Avro enrich with {_MANY} schemas in the slice, over one schema"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        with avro_works(bench.bootstrap_servers, sources, bench.records, 1, _MANY) as (one, many):
            engine = bench.engine()
            yield Contest(
                self.name,
                (Kpipe("kpipe", one, engine), Kpipe("kpipe_many_ids", many, engine)),
                (Ratio(self.name, "kpipe_many_ids", "kpipe", of="time", better="smaller"),),
                bench.turns,
                bench.warm_up_turns,
            )
