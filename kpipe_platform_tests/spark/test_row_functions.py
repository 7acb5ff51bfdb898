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
from kpipe_platform.spark.row_functions import map_records
from kpipe_platform.spark.stage_notes import RowFault, StageNotes, noting

from .conftest import NOON, Records

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
@pytest.mark.parametrize("bad", [(), (0,), (9,), (3, 7), tuple(range(10))], ids=["none", "first", "last", "two", "all"])
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
        assert "test_row_functions.py" in (note.fault.stacktrace or "")
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


@pytest.mark.parametrize("batch", [None, "pandas"])
@pytest.mark.parametrize("name", ["ConnectionRefusedError", "TimeoutError", "MemoryError"])
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
        ({"id": None}, "no 'id', which is declared NOT NULL"),
        ({}, "no 'id', which is declared NOT NULL"),
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


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda df: df[["id"]].iloc[1:], "rows for"),
        (lambda df: df[["id"]].assign(txet=1), "'txet'"),
        (lambda df: df[["id"]].astype(str) + "x", "'id' as"),
        (lambda df: pd.DataFrame({"id": [None] * len(df)}), "no 'id', which is declared NOT NULL"),
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
        ({"schema": "id BIGNT"}, "cannot be read"),
        ({"schema": "_kafka STRING"}, "_kafka"),
        ({"schema": SCHEMA, "batch": "polars"}, "polars"),
    ],
)
def test_bad_arguments(records: Records, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        map_records(records(rows(1)), by_record, **arguments)


def test_without_coordinates_faults_have_no_place(records: Records) -> None:
    with noting(), pytest.raises(ConfigError, match="no _kafka"):
        map_records(records(rows(1)).drop("_kafka"), by_record, schema=SCHEMA)
