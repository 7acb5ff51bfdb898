"""Python functions over records, with retries, and a fault for each record whose attempts all fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.policies.retry import RecordRetryPolicy
from kpipe_platform.spark._compat import cloudpickle, to_arrow_schema
from kpipe_platform.spark.failures import root_cause
from kpipe_platform.spark.stage.notes import current_notes
from kpipe_platform.spark.stage.record_worker import NOTE, RowWorker


def map_records(
    df: DataFrame,
    fn: Callable[[Any], Any],
    *,
    schema: str | StructType,
    batch: Literal["pandas", "arrow"] | None = None,
    retry: RecordRetryPolicy | None = None,
    on_fault: FaultAction | str | None = None,
) -> DataFrame:
    """Call a Python function on the executors, once for each record.

    The result is persisted, so the function does not run again if the result is read several times. If the function
    raises for a record, the call is retried as ``retry`` allows. If all attempts fail, or the result does not fit
    ``schema``, the record becomes a fault with its attempts. Exceptions that are not caused by the record (connection
    refused, timeout, out of memory or disk, ``TransientError``) are never faults: if all attempts fail, they fail the
    run, and the committed offsets do not change. Outside an asset, for example in a unit test, the first fault is
    raised.

    Args:
        df: Records, with ``_kafka`` if faults must be handled.
        fn: Without ``batch``: takes a dict of the columns (with ``_kafka`` as a dict) and returns a dict of the
            schema's columns, a list of such dicts, or None to drop the record. With ``batch``: takes a
            pandas.DataFrame or a pyarrow.RecordBatch and returns the same kind with as many rows in the same order. A
            batch that fails is halved until the failing record is isolated.
        schema: Columns of the result without ``_kafka``: DDL text such as ``"id BIGINT NOT NULL, fare DOUBLE"``, or
            a StructType. A field that the function leaves out is null.
        batch: Form of the function's input and result: ``pandas``, ``arrow``, or None for dicts.
        retry: Retry policy for a record; None for a single attempt.
        on_fault: What happens to a record that fails. Default: the asset's action for stage faults.

    Columns:
        The schema's columns (all nullable), and ``_kafka`` if ``df`` has it, which keeps the key, headers and source.

    Raises:
        ConfigError: An argument is invalid, ``fn`` cannot be pickled, or ``_kafka`` is missing.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    if batch not in (None, "pandas", "arrow"):
        msg = f"map_records({name}): batch is {batch!r}"
        raise ConfigError(msg, fix='use batch="pandas", batch="arrow", or omit batch for one record at a time')
    if not callable(fn):
        msg = f"map_records: {fn!r} is not callable"
        raise ConfigError(msg, fix="pass a function of one argument")
    if retry is not None and not isinstance(retry, RecordRetryPolicy):
        msg = f"map_records({name}): retry is {retry!r}"
        raise ConfigError(msg, fix="use RecordRetryPolicy(max_attempts=...)")
    notes = current_notes()
    kept = "_kafka" in df.columns
    if notes is not None and not kept:
        msg = f"map_records({name}): the DataFrame has no _kafka column, which identifies failing records"
        raise ConfigError(msg, fix="call map_records before _kafka is dropped")
    declared = _declared(df, schema, name)
    _check_pickles(fn, name)
    fields = [StructField(f.name, f.dataType, True) for f in declared.fields]
    if kept:
        fields.append(df.schema["_kafka"])
    made = StructType([*fields, StructField(NOTE, StringType(), True)])
    worker = RowWorker(
        fn=fn,
        batch=batch,
        retry=retry,
        action=_action(on_fault, name),
        schema=_arrow_schema(made, name),
        required=tuple(f.name for f in declared.fields if not f.nullable),
        raises=notes is None,
    )
    # Persisted, because good rows and faults are read separately, and the function must run only once.
    mapped = df.mapInArrow(lambda batches: worker(batches), made).persist()
    if notes is not None:
        notes.cached.append(mapped)
        coordinates = [F.col(f"_kafka.{column}").alias(column) for column in ("topic", "partition", "offset")]
        notes.faults.append(mapped.where(F.col(NOTE).isNotNull()).select(*coordinates, F.col(NOTE).alias("note")))
    return mapped.where(F.col(NOTE).isNull()).drop(NOTE)


def _declared(df: DataFrame, schema: str | StructType, name: str) -> StructType:
    try:
        declared = cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    except Exception as error:
        msg = f"map_records({name}): the schema {schema!r} cannot be parsed: {root_cause(error)}"
        raise ConfigError(msg, fix='write it as DDL, for example "id BIGINT NOT NULL, fare DOUBLE"') from error
    if not isinstance(declared, StructType):
        msg = f"map_records({name}): the schema {schema!r} declares no columns"
        raise ConfigError(msg, fix='write it as DDL, for example "id BIGINT NOT NULL, fare DOUBLE"')
    # Column names in Spark are case-insensitive.
    folded = [column.lower() for column in declared.names]
    twice = sorted({column for column in folded if folded.count(column) > 1})
    if twice:
        msg = f"map_records({name}): the schema {schema!r} declares {', '.join(map(repr, twice))} more than once"
        raise ConfigError(msg, fix="give each column a unique name")
    reserved = {"_kafka", NOTE} & set(folded)
    if reserved or not declared.names:
        msg = (
            f"map_records({name}): the schema {schema!r} has only _kafka, or has a reserved column: {sorted(reserved)}"
        )
        raise ConfigError(msg, fix="declare the columns that the function returns; kpipe keeps _kafka")
    return declared


def _arrow_schema(made: StructType, name: str) -> pa.Schema:
    try:
        return to_arrow_schema(made, timezone="UTC", error_on_duplicated_field_names_in_struct=True)
    except Exception as error:
        msg = f"map_records({name}): Arrow cannot represent a type of the schema: {root_cause(error)}"
        raise ConfigError(msg, fix="declare another type, for example STRING") from error


def _action(on_fault: FaultAction | str | None, name: str) -> FaultAction | None:
    try:
        return None if on_fault is None else FaultAction(on_fault)
    except ValueError:
        msg = f"map_records({name}): on_fault is {on_fault!r}"
        raise ConfigError(msg, fix="use a FaultAction, or None for the asset's action") from None


def _check_pickles(fn: Callable[..., Any], name: str) -> None:
    try:
        cloudpickle.dumps(fn)  # type: ignore[no-untyped-call]
    except Exception as error:
        culprits = ", ".join(sorted(_unpicklable(fn))) or "something that it uses"
        msg = f"map_records({name}): the function cannot be sent to Spark's workers because of {culprits}: {error}"
        raise ConfigError(
            msg,
            fix="create it inside the function, or once per worker in a function with functools.cache; "
            "capture only plain values",
        ) from error


def _unpicklable(fn: Callable[..., Any], depth: int = 3) -> set[str]:
    """Names of captured objects that cannot be pickled, including those that captured functions capture."""
    names = set()
    for name, value in _captured(fn).items():
        try:
            cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001  # any exception means that it cannot be pickled
            inside = _unpicklable(value, depth - 1) if depth and inspect.isroutine(value) else set()
            names |= inside or {f"{name!r} ({type(value).__name__})"}
    return names


def _captured(fn: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(fn, functools.partial):
        arguments = {f"argument {i}": value for i, value in enumerate(fn.args)}
        return {**arguments, **fn.keywords, **_captured(fn.func)}
    if inspect.ismethod(fn):
        return {**getattr(fn.__self__, "__dict__", {}), **_captured(fn.__func__)}
    try:
        used = inspect.getclosurevars(fn)
    except (TypeError, ValueError):
        # A callable object, or a closure variable that is not set yet.
        return dict(vars(fn)) if hasattr(fn, "__dict__") else {}
    return {**used.globals, **used.nonlocals}
