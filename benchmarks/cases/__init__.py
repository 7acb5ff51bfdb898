"""The cases, in the order in which they run."""

from __future__ import annotations

from benchmarks.cases.at_least_once_4p import AtLeastOnce4p
from benchmarks.cases.avro import Avro1p, AvroManyIds
from benchmarks.cases.json_1p import Json1p
from benchmarks.cases.json_4p import Json4p
from benchmarks.cases.latency import Latency
from benchmarks.cases.limit import Limit
from benchmarks.cases.load import ImportKpipe, Load
from benchmarks.cases.one_record import OneRecord
from benchmarks.cases.protobuf import Protobuf1p
from benchmarks.cases.range_run import RangeRun
from benchmarks.cases.raw import Raw
from benchmarks.cases.record_size import RecordSize
from benchmarks.cases.slice_growth import SliceGrowth
from benchmarks.cases.stages import Slice20k, Stage
from benchmarks.cases.tick_1000 import Tick1000
from benchmarks.cases.warm_cold import WarmCold
from benchmarks.measure import Case
from benchmarks.work import JoinOrders, MapOrders, PandasOrders, UdfOrders

# Cases that measure memory follow cases in which Spark's Python workers are idle for a minute and therefore exit.
CASES: tuple[Case, ...] = (
    Json1p(),
    Json4p(),
    Raw(1),
    Raw(4),
    Stage("join_1p", "a broadcast join", JoinOrders),
    Stage("udf_1p", "a Python UDF", UdfOrders),
    Stage("pandas_1p", "a pandas UDF", PandasOrders),
    Stage("map_records_1p", "a Python function over records", MapOrders),
    Avro1p(),
    AvroManyIds(),
    Protobuf1p(),
    Slice20k(),
    Limit(),
    AtLeastOnce4p(),
    OneRecord(),
    Latency(seconds=20),
    RangeRun(100),
    WarmCold(),
    Tick1000(),
    ImportKpipe(),
    Load(1_000),
    SliceGrowth(),
    RecordSize("size_1kb", 1_000),
    RecordSize("size_10kb", 10_000),
    RecordSize("size_100kb", 100_000),
    RecordSize("size_1mb", 1_000_000),
)
