"""Python functions over records on real workers: results, faults with their attempts, and what fails the run."""

from __future__ import annotations

import datetime as dt
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kpipe_platform.errors import ConfigError, StageFailedError, TransientError
from kpipe_platform.policies.faults import Component, FaultAction
from kpipe_platform.policies.retry import RecordRetryPolicy
from kpipe_platform.spark.failures import classify
from kpipe_platform.spark.stage.map_records import map_records
from kpipe_platform.spark.stage.notes import RowFault, StageNotes, noting
from kpipe_platform_tests.spark.conftest import NOON, Records

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT NOT NULL, text STRING"


def rows(count: int, *bad: int) -> list[dict[str, Any]]:
    return [{"id": n, "note": "bad" if n in bad else f"n{n}"} for n in range(count)]


def faults(notes: StageNotes) -> dict[int, RowFault]:
    return {r["offset"]: RowFault.from_json(r["note"]) for f in notes.faults for r in f.collect()}


def ids(frame: DataFrame) -> list[int]:
    return [row["id"] for row in frame.collect()]


def by_record(record: dict[str, Any]) -> dict[str, Any]:
    if record["note"] == "bad":
        raise ValueError(f"bad record {record['id']}")
    return {"id": record["id"], "text": record["note"].upper()}


def by_pandas(batch: pd.DataFrame) -> pd.DataFrame:
    for number in batch["id"][batch["note"] == "bad"]:
        raise ValueError(f"bad record {number}")
    return pd.DataFrame({"id": batch["id"], "text": batch["note"].str.upper()})


def by_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    for row in batch.to_pylist():
        if row["note"] == "bad":
            raise ValueError(f"bad record {row['id']}")
    return pa.RecordBatch.from_pydict({"id": batch.column("id"), "text": pc.utf8_upper(batch.column("note"))})


@pytest.mark.parametrize(
    ("fn", "batch"), [(by_record, None), (by_pandas, "pandas"), (by_arrow, "arrow")], ids=["record", "pandas", "arrow"]
)
@pytest.mark.parametrize("bad", [(), (0, 3, 7, 9), tuple(range(10))], ids=["none", "some", "all"])
def test_results_and_faults(records: Records, fn: Any, batch: Any, bad: tuple[int, ...]) -> None:
    with noting() as notes:
        good = map_records(records(rows(10, *bad)), fn, schema=SCHEMA, batch=batch, on_fault=FaultAction.SKIP)
    assert good.columns == ["id", "text", "_kafka"]
    found = good.collect()
    assert [row["id"] for row in found] == [n for n in range(10) if n not in bad]
    for row in found:
        assert row["text"] == f"N{row['id']}"
        kafka = row["_kafka"]
        assert (kafka["topic"], kafka["offset"], kafka["key"]) == ("orders", row["id"], "k")
        assert [(h["key"], bytes(h["value"])) for h in kafka["headers"]] == [("h", b"\xff")]
    noted = faults(notes)
    assert sorted(noted) == list(bad)
    for offset, note in noted.items():
        assert (note.action, note.retries) == (FaultAction.SKIP, ())
        assert (note.fault.component, note.fault.exception_type) == (Component.STAGE, "ValueError")
        assert note.fault.message == f"bad record {offset}"
        assert "test_map_records.py" in (note.fault.stacktrace or "")
        assert "row_worker.py" not in (note.fault.stacktrace or "")
    notes.release()


def test_none_leaves_out_and_a_list_makes_several(records: Records) -> None:
    def fn(record):  # type: ignore[no-untyped-def]
        return [{"id": record["id"], "text": str(n)} for n in range(record["id"])] if record["id"] != 2 else None

    with noting() as notes:
        good = map_records(records(rows(4)), fn, schema=SCHEMA)
    assert [(r["id"], r["text"]) for r in good.collect()] == [(1, "0"), (3, "0"), (3, "1"), (3, "2")]
    assert faults(notes) == {}
    notes.release()


@pytest.mark.parametrize("batch", [None, "pandas"])
def test_attempts_are_the_retry_history(records: Records, batch: Any) -> None:
    retry = RecordRetryPolicy(max_attempts=3, delay_s=0.01, jitter="none")
    fn = by_record if batch is None else by_pandas
    with noting() as notes:
        good = map_records(records(rows(4, 2)), fn, schema=SCHEMA, batch=batch, retry=retry)
    assert ids(good) == [0, 1, 3]
    history = faults(notes)[2].retries
    assert [(r.attempt, r.delay_ms, r.message) for r in history] == [
        (1, 10, "bad record 2"),
        (2, 20, "bad record 2"),
        (3, None, "bad record 2"),
    ]
    notes.release()


def test_a_record_that_succeeds_at_last_is_good(records: Records, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def fn(record):  # type: ignore[no-untyped-def]
        marker = Path(folder) / str(record["id"])
        if not marker.exists():
            marker.touch()
            raise ValueError("not yet")
        return {"id": record["id"], "text": "at last"}

    with noting() as notes:
        good = map_records(records(rows(3)), fn, schema=SCHEMA, retry=RecordRetryPolicy(delay_s=0))
    assert ids(good) == [0, 1, 2]
    assert faults(notes) == {}
    notes.release()


@pytest.mark.parametrize("batch", [None, "pandas"])
def test_the_function_runs_once_a_record(records: Records, tmp_path: Path, batch: Any) -> None:
    log = str(tmp_path / "calls")

    def fn(given):  # type: ignore[no-untyped-def]
        with Path(log).open("a") as file:
            file.write("x\n")
        return by_record(given) if batch is None else by_pandas(given)

    with noting() as notes:
        good = map_records(records(rows(6, *([4] if batch is None else []))), fn, schema=SCHEMA, batch=batch)
    good.collect()
    faults(notes)
    good.count()
    calls = len(Path(log).read_text().splitlines())
    assert calls == 6 if batch is None else calls <= 2
    notes.release()


# Which exceptions are told apart is tried without Spark, in ``test_failures``.
@pytest.mark.parametrize(("batch", "name"), [(None, "ConnectionRefusedError"), ("pandas", "MemoryError")])
def test_what_is_not_the_records_fails_the_run(records: Records, batch: Any, name: str) -> None:
    def fn(given):  # type: ignore[no-untyped-def]
        import builtins

        raise getattr(builtins, name)("no answer")

    with noting() as notes:
        good = map_records(records(rows(3)), fn, schema=SCHEMA, batch=batch, retry=RecordRetryPolicy(delay_s=0))
    with pytest.raises(Exception, match="no answer") as caught:
        good.collect()
    assert isinstance(classify(caught.value, "orders/0 [0, 3)"), TransientError)
    notes.release()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"id": "seven"}, "'id'"),
        ({"id": None}, "null for 'id', which is declared NOT NULL"),
        ({}, "null for 'id', which is declared NOT NULL"),
        ({"id": 1, "txet": "a"}, "'txet', which the schema does not declare"),
        ("text", "returned str"),
        ({"id": 1, "text": 3}, "'text'"),
        ({"id": 2**70}, "'id'"),
    ],
)
def test_a_result_that_does_not_fit_is_a_fault_of_its_record(records: Records, result: Any, message: str) -> None:
    def fn(record):  # type: ignore[no-untyped-def]
        return result if record["id"] == 1 else {"id": record["id"]}

    with noting() as notes:
        good = map_records(records(rows(3)), fn, schema=SCHEMA)
    assert ids(good) == [0, 2]
    fault = faults(notes)[1].fault
    assert message in fault.message
    assert fault.kind == "ResultError"
    notes.release()


@pytest.mark.parametrize("batch", [None, "pandas", "objects", "arrow"])
def test_a_result_that_the_schema_would_change_is_a_fault(records: Records, batch: Any) -> None:
    kinds = "i INT, t TIMESTAMP, d DATE, f FLOAT, b BINARY, s STRUCT<a: INT>"
    at = dt.datetime(2026, 1, 5, 10, 30, tzinfo=dt.timezone.utc)
    changed: list[dict[str, Any]] = [
        {},
        {"i": 1.5},
        {"t": 1767225600000},
        {"d": at},
        {"d": 20000},
        {"f": 1e39},
        {"b": "text"},
        {"s": {"a": 1.5}},
        {"s": {"a": 1, "b": 2}},
    ]

    def fn(given):  # type: ignore[no-untyped-def]
        if batch is None:
            return changed[given["id"]]
        # A batch that fails is halved, until one record is left.
        rows = [changed[n] for n in (given["id"] if isinstance(given, pd.DataFrame) else given["id"].to_pylist())]
        names = sorted({name for row in rows for name in row})
        columns = {name: [row.get(name) for row in rows] for name in names}
        if batch == "arrow":
            return pa.table(columns) if names else pa.table({"i": pa.nulls(len(rows), pa.int32())})
        kind = object if batch == "objects" else None
        return pd.DataFrame({name: pd.Series(values, dtype=kind) for name, values in columns.items()}, given.index)

    with noting() as notes:
        way: Any = "pandas" if batch == "objects" else batch
        good = map_records(records(rows(len(changed))), fn, schema=kinds, batch=way)
    assert [row["_kafka"]["offset"] for row in good.collect()] == [0]
    found = faults(notes)
    assert sorted(found) == list(range(1, len(changed)))
    assert {note.fault.kind for note in found.values()} == {"ResultError"}
    notes.release()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda df: df[["id"]].iloc[1:], "rows for"),
        (lambda df: df[["id"]].assign(txet=1), "'txet'"),
        (lambda df: df[["id"]].astype(str) + "x", "'id' as"),
        (lambda df: pd.DataFrame({"id": [None] * len(df)}), "null for 'id', which is declared NOT NULL"),
    ],
)
def test_a_batch_that_does_not_fit(records: Records, result: Any, message: str) -> None:
    with noting() as notes:
        good = map_records(records(rows(2)), result, schema=SCHEMA, batch="pandas")
    assert ids(good) == []
    assert all(message in note.fault.message for note in faults(notes).values())
    assert len(faults(notes)) == 2
    notes.release()


def test_types_arrive_and_leave_as_they_are(spark: SparkSession, records: Records) -> None:
    def fn(record):  # type: ignore[no-untyped-def]
        kafka = record["_kafka"]
        return {
            "at": kafka["timestamp"],
            "price": Decimal("1.50"),
            "data": kafka["headers"][0]["value"],
            "tags": ["a", None],
            "leg": {"code": "EWR", "n": 1},
        }

    schema = "at TIMESTAMP, price DECIMAL(10,2), data BINARY, tags ARRAY<STRING>, leg STRUCT<code: STRING, n: INT>"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with noting() as notes:
            [row] = map_records(records(rows(1)), fn, schema=schema).collect()
        assert row["at"].astimezone(dt.timezone.utc) == NOON
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert (row["price"], bytes(row["data"]), row["tags"]) == (Decimal("1.50"), b"\xff", ["a", None])
    assert (row["leg"]["code"], row["leg"]["n"]) == ("EWR", 1)
    notes.release()


def test_by_hand_the_first_fault_is_raised(records: Records) -> None:
    with pytest.raises(Exception, match="bad record 1") as caught:
        map_records(records(rows(3, 1)), by_record, schema=SCHEMA).collect()
    assert isinstance(classify(caught.value, "here"), StageFailedError)


def test_what_cannot_be_pickled_is_named(records: Records) -> None:
    lock = threading.Lock()

    def fn(record):  # type: ignore[no-untyped-def]
        with lock:
            return record

    with pytest.raises(ConfigError, match=r"fn\): .*'lock' \(lock\)") as caught:
        map_records(records(rows(1)), fn, schema=SCHEMA)
    assert "inside the function" in str(caught.value.fix)


def test_a_session_cannot_be_captured(spark: SparkSession, records: Records) -> None:
    with pytest.raises(ConfigError, match="'spark'"):
        map_records(records(rows(1)), lambda r: spark.version and r, schema=SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schema": "id BIGNT"}, "cannot be parsed"),
        ({"schema": "_kafka STRING"}, "_kafka"),
        ({"schema": SCHEMA, "batch": "polars"}, "polars"),
        ({"schema": "BIGINT"}, "declares no columns"),
        ({"schema": None}, "declares no columns"),
        ({"schema": "id INT, ID INT"}, "'id' more than once"),
        ({"schema": "_KAFKA INT"}, "_kafka"),
        ({"schema": "i INTERVAL"}, "Arrow cannot represent a type"),
        ({"schema": SCHEMA, "on_fault": "drop"}, "'drop'"),
        ({"schema": SCHEMA, "retry": 3}, "retry is 3"),
    ],
)
def test_bad_arguments(records: Records, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        map_records(records(rows(1)), by_record, **arguments)


def test_what_cannot_be_called(records: Records) -> None:
    with pytest.raises(ConfigError, match="is not callable"):
        map_records(records(rows(1)), 5, schema=SCHEMA)  # type: ignore[arg-type]


def test_without_coordinates_faults_have_no_place(records: Records) -> None:
    with noting(), pytest.raises(ConfigError, match="no _kafka"):
        map_records(records(rows(1)).drop("_kafka"), by_record, schema=SCHEMA)


def test_a_record_of_which_one_row_does_not_fit_leaves_no_row(records: Records) -> None:
    def fn(record):  # type: ignore[no-untyped-def]
        texts = ["a", 3, "b", 4] if record["id"] == 1 else ["a", "b"]
        return [{"id": record["id"], "text": text} for text in texts]

    with noting() as notes:
        good = map_records(records(rows(3)), fn, schema=SCHEMA)
    assert ids(good) == [0, 0, 2, 2]
    [found] = notes.faults
    assert [row["offset"] for row in found.collect()] == [1]
    notes.release()


@pytest.mark.parametrize(
    ("schema", "good", "bad", "path"),
    [
        ("x STRUCT<code: STRING NOT NULL>", {"code": "a"}, {"code": None}, "x.code"),
        ("x STRUCT<code: INT NOT NULL, n: INT>", {"code": 1}, {"n": 1}, "x.code"),
        ("x ARRAY<STRUCT<code: INT NOT NULL>>", [{"code": 1}, None], [{"code": 1}, {}], "x[].code"),
        ("x MAP<STRING, STRUCT<n: INT NOT NULL>>", {"a": {"n": 1}}, {"a": {"n": None}}, "x[].n"),
    ],
)
@pytest.mark.parametrize("batch", [None, "pandas", "arrow"])
def test_a_null_inside_that_must_not_be_is_a_fault(
    records: Records, batch: Any, schema: str, good: Any, bad: Any, path: str
) -> None:
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    kind = to_arrow_type(StructType.fromDDL(schema)["x"].dataType)

    def fn(given):  # type: ignore[no-untyped-def]
        if batch is None:
            return {"x": bad if given["id"] == 1 else good}
        numbers = list(given["id"]) if batch == "pandas" else given.column("id").to_pylist()
        values = [bad if number == 1 else good for number in numbers]
        if batch == "pandas":
            return pd.DataFrame({"x": pd.Series(values, dtype=object)})
        return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["x"])

    with noting() as notes:
        found = map_records(records(rows(3)), fn, schema=schema, batch=batch)
    assert [row["_kafka"]["offset"] for row in found.collect()] == [0, 2]
    assert faults(notes)[1].fault.message == f"the function returned null for {path!r}, which is declared NOT NULL"
    notes.release()


def test_a_pandas_function_that_sorts_keeps_each_record_with_its_source(records: Records) -> None:
    def fn(frame):  # type: ignore[no-untyped-def]
        return frame.sort_values("id", ascending=False)[["id"]]

    with noting() as notes:
        good = map_records(records(rows(9)).coalesce(1), fn, schema=SCHEMA, batch="pandas")
    assert [(row["id"], row["_kafka"]["offset"]) for row in good.collect()] == [(n, n) for n in range(9)]
    notes.release()


def test_a_large_number_beside_a_null_is_exact_in_pandas(records: Records) -> None:
    large = 2**53 + 1
    frame = records([{"n": large}, {"n": None}], "n BIGINT").coalesce(1)
    with noting() as notes:
        good = map_records(frame, lambda batch: batch[["n"]], schema="n BIGINT", batch="pandas")
    assert [row["n"] for row in good.collect()] == [large, None]
    notes.release()


def test_nanoseconds_of_pandas_are_cut_as_spark_cuts_them(records: Records) -> None:
    def fn(frame):  # type: ignore[no-untyped-def]
        return pd.DataFrame({"at": [pd.Timestamp("2020-01-01T00:00:00.123456789", tz="UTC")] * len(frame)})

    with noting() as notes:
        [row] = map_records(records(rows(1)), fn, schema="at TIMESTAMP", batch="pandas").collect()
    assert row["at"].astimezone(dt.timezone.utc) == dt.datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=dt.timezone.utc)
    notes.release()


@pytest.mark.parametrize("batch", [None, "pandas"])
def test_maps_are_dicts_both_ways(records: Records, batch: Any) -> None:
    from pyspark.sql import functions as F

    def fn(given):  # type: ignore[no-untyped-def]
        if batch is None:
            return {"m": {**given["m"], "n": 1}, "deep": given["deep"]}
        return pd.DataFrame({"m": [{**m, "n": 1} for m in given["m"]], "deep": given["deep"]})

    m = F.create_map(F.lit("a"), F.lit(0))
    frame = records(rows(1)).select("_kafka", m.alias("m"), F.array(F.struct(m.alias("m"))).alias("deep"))
    with noting() as notes:
        good = map_records(frame, fn, schema="m MAP<STRING, INT>, deep ARRAY<STRUCT<m: MAP<STRING, INT>>>", batch=batch)
    [row] = good.collect()
    assert (row["m"], row["deep"][0]["m"]) == ({"a": 0, "n": 1}, {"a": 0})
    notes.release()


@pytest.mark.parametrize("batch", [None, "pandas"])
def test_each_attempt_gets_the_record_as_it_came(records: Records, batch: Any) -> None:
    def fn(given):  # type: ignore[no-untyped-def]
        text = given.pop("note")
        if list([text] if batch is None else text) == ["bad"]:
            raise ValueError("bad")
        return {"id": given["id"], "text": text} if batch is None else given[["id"]].assign(text=text)

    with noting() as notes:
        retry = RecordRetryPolicy(max_attempts=3, delay_s=0)
        map_records(records(rows(2, 1)), fn, schema=SCHEMA, batch=batch, retry=retry).collect()
    assert [attempt.message for attempt in faults(notes)[1].retries] == ["bad"] * 3
    notes.release()


def test_a_row_that_is_not_kafkas_goes_on_and_its_fault_fails_the_run(records: Records) -> None:
    from pyspark.sql import functions as F

    def fn(record):  # type: ignore[no-untyped-def]
        if record["note"] == "bad":
            raise ValueError("nowhere to put it")
        return {"id": record["id"]}

    frame = records(rows(3, 2)).withColumn("_kafka", F.when(F.col("id") == 0, F.col("_kafka")))
    with noting() as notes:
        good = map_records(frame.where("id < 2"), fn, schema=SCHEMA)
        assert [(row["id"], row["_kafka"] is None) for row in good.collect()] == [(0, False), (1, True)]
        with pytest.raises(Exception, match="nowhere to put it"):
            map_records(frame, fn, schema=SCHEMA).collect()
    notes.release()


@pytest.mark.parametrize(("batch", "wanted"), [("pandas", "pandas.DataFrame"), ("arrow", "pyarrow.RecordBatch")])
def test_a_batch_function_that_returns_something_else(records: Records, batch: Any, wanted: str) -> None:
    with noting() as notes:
        map_records(records(rows(1)), lambda _: None, schema=SCHEMA, batch=batch).collect()
    assert faults(notes)[0].fault.message == f"the function returned NoneType; return a {wanted}"
    notes.release()


def test_the_culprit_is_found_in_what_the_function_calls(records: Records) -> None:
    import functools

    lock = threading.Lock()

    class Caller:
        def __init__(self) -> None:
            self.client = lock

        def method(self, record: dict[str, Any]) -> Any:
            return self.client and record

    def inner(record):  # type: ignore[no-untyped-def]
        return lock and record

    def outer(record):  # type: ignore[no-untyped-def]
        return inner(record)

    for fn, culprit in (
        (outer, r"'lock' \(lock\)"),
        (Caller().method, r"'client' \(lock\)"),
        (functools.partial(lambda a, record: record, lock), r"'argument 0' \(lock\)"),
    ):
        with pytest.raises(ConfigError, match=culprit):
            map_records(records(rows(1)), fn, schema=SCHEMA)


def test_an_exception_that_was_raised_from_an_outage_is_one(records: Records) -> None:
    def fn(record):  # type: ignore[no-untyped-def]
        try:
            raise ConnectionRefusedError("no answer")
        except ConnectionRefusedError as error:
            raise ValueError("cannot enrich") from error

    with noting() as notes:
        good = map_records(records(rows(2)), fn, schema=SCHEMA)
    with pytest.raises(Exception, match="cannot enrich"):
        good.collect()
    notes.release()
