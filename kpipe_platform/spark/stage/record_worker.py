"""The part of ``map_records`` that runs on executors: turns Arrow batches into results and faults. Imports no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.policies.retry import RecordRetryPolicy, Tried, try_again
from kpipe_platform.spark.failures import is_away
from kpipe_platform.spark.stage.notes import RowFault, retry_of
from kpipe_platform.spark.stage.record_results import (
    ResultError,
    as_table,
    check_names,
    check_required,
    frame_as_table,
    listed,
    misfit,
    pandas_frame,
    records_of,
    rows_as_columns,
    table_as_columns,
    with_type,
)

NOTE = "_kpipe_note"
"""Column with the JSON of a ``RowFault``; null for a good record."""

_OWN = ("spark/stage/record_worker.py", "spark/stage/record_results.py", "spark/stage/exact.py", "policies/retry.py")


@dataclass(frozen=True)
class RowWorker:
    """Calls a row function. ``mapInArrow`` calls the worker, so it can be pickled.

    Args:
        fn: The user's function.
        batch: Input of the function: ``pandas``, ``arrow``, or None for dicts.
        retry: Retry policy for one record; None for a single attempt.
        action: Action for faults; None for the asset's action.
        schema: Columns to return: the function's columns, ``_kafka`` if it is kept, and the note.
        required: Columns that must not be null.
        raises: Raise the first fault instead of noting it.
    """

    fn: Callable[[Any], Any]
    batch: str | None
    retry: RecordRetryPolicy | None
    action: FaultAction | None
    schema: pa.Schema
    required: tuple[str, ...]
    raises: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of each batch, in its order."""
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if self.batch is None:
                yield self._records(batch)
            else:
                yield from self._batch(batch)

    @property
    def _columns(self) -> pa.Schema:
        """The function's own columns."""
        return pa.schema([f for f in self.schema if f.name not in ("_kafka", NOTE)])

    # One record at a time

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._columns
        declared = frozenset(columns.names)
        results: list[tuple[list[dict[str, Any]], str | None]] = []
        for source, record in enumerate(records_of(batch)):
            tried = try_again(self.retry, partial(self._results, [record], batch, source, declared))
            results.append((tried.result, None) if tried.error is None else ([{}], self._note(tried, batch, source)))
        made = rows_as_columns([row for rows, _ in results for row in rows], columns)
        if made is None:
            # A row does not fit. All rows of its record become one fault, so that a record has either rows or a fault.
            for source, (rows, note) in enumerate(results):
                error = next(filter(None, (misfit(row, columns) for row in rows)), None) if note is None else None
                if error is not None:
                    results[source] = [{}], self._note(Tried(error=error), batch, source)
            made = pa.RecordBatch.from_pylist([row for rows, _ in results for row in rows], schema=columns)
        sources = [source for source, (rows, _) in enumerate(results) for _ in rows]
        notes = [note for rows, note in results for _ in rows]
        return self._joined(made, batch.take(pa.array(sources, pa.int64())), notes)

    def _results(
        self, fresh: list[dict[str, Any]], batch: pa.RecordBatch, source: int, declared: frozenset[str]
    ) -> list[dict[str, Any]]:
        # A failed attempt may have modified its record, so each further attempt gets a fresh copy.
        record = fresh.pop() if fresh else records_of(batch.slice(source, 1))[0]
        results = listed(self.fn(record))
        for result in results:
            check_names(result, declared)
            check_required(result, self.required)
        return results

    # A batch at a time

    def _batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process a batch. If it fails, process its halves, until the failing record is isolated."""
        # Failures are handled outside an except block; otherwise a later exception would have the first as its context.
        tried = try_again(None, lambda: self._call(batch))
        if tried.error is not None and (is_away(tried.error) or batch.num_rows == 1):
            # Either not the record's fault, or the record is isolated: retry as the policy allows.
            tried = try_again(self.retry, lambda: self._call(batch), first=tried.error)
        if tried.error is None:
            yield self._joined(tried.result, batch, [None] * batch.num_rows)
        elif batch.num_rows == 1:
            none = pa.RecordBatch.from_pylist([{}], schema=self._columns)
            yield self._joined(none, batch, [self._note(tried, batch, 0)])
        elif is_away(tried.error):
            raise tried.error
        else:
            middle = batch.num_rows // 2
            yield from self._batch(batch.slice(0, middle))
            yield from self._batch(batch.slice(middle))

    def _call(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.batch == "pandas":
            table = frame_as_table(self.fn(pandas_frame(batch)), self._columns)
        else:
            table = as_table(self.fn(batch), self._columns)
        if table.num_rows != batch.num_rows:
            msg = f"the function returned {table.num_rows} rows for {batch.num_rows} records"
            raise ResultError(msg)
        return table_as_columns(table, self._columns, self.required)

    # Shared

    def _joined(self, made: pa.RecordBatch, source: pa.RecordBatch, notes: list[str | None]) -> pa.RecordBatch:
        arrays = list(made.columns)
        if "_kafka" in self.schema.names:
            arrays.append(with_type(source.column("_kafka"), self.schema.field("_kafka").type))
        arrays.append(pa.array(notes, pa.string()))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _note(self, tried: Tried, batch: pa.RecordBatch, source: int) -> str:
        error = tried.error
        if error is None:
            msg = "this result has no fault"
            raise RuntimeError(msg)
        # A row that is not from Kafka has no coordinates for a dead letter.
        if self.raises or is_away(error) or not batch.column("_kafka")[source].is_valid:
            raise error
        fault = Fault.from_exception(Component.STAGE, _users(error))
        return RowFault(fault, self.action, retries=tuple(map(retry_of, tried.failed))).to_json()


def _users(error: Exception) -> Exception:
    """The exception without kpipe's outer frames in its traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith(_OWN):
        trace = trace.tb_next
    return error.with_traceback(trace)
