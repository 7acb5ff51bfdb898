"""The executors' side of ``map_records``: Arrow batches in, results and faults out. Does not import Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.policies.retry import RecordRetryPolicy, Tried, try_again
from kpipe_platform.spark.failures import is_away
from kpipe_platform.spark.stage_notes import RowFault, retry_of

NOTE = "_kpipe_note"
"""Column of the JSON of a ``RowFault``; null where the record is good."""


class ResultError(ValueError):
    """What a row function returned does not fit its schema."""


@dataclass(frozen=True)
class RowWorker:
    """Calls a row function; pickles, and is what ``mapInArrow`` calls.

    Args:
        fn: The user's function.
        batch: ``pandas``, ``arrow``, or None for dicts.
        retry: Attempts at one record.
        action: Action of the faults.
        schema: Columns to return: the function's, ``_kafka`` where it is kept, and the note.
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
        """Results of each batch, in its order."""
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
        columns, names = self._columns, set(self._columns.names)
        rows: list[dict[str, Any]] = []
        sources: list[int] = []
        notes: list[str | None] = []

        def add(source: int, found: Iterable[dict[str, Any]], note: str | None = None) -> None:
            for row in found:
                rows.append(row)
                sources.append(source)
                notes.append(note)

        for source, record in enumerate(batch.to_pylist()):

            def call(record: dict[str, Any] = record) -> list[dict[str, Any]]:
                results = _listed(self.fn(record))
                for result in results:
                    self._fits(result, names)
                return results

            tried = try_again(self.retry, call)
            if tried.error is not None:
                add(source, [{}], self._note(tried))
            else:
                add(source, tried.result)
        try:
            made = pa.RecordBatch.from_pylist(rows, schema=columns)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # One of them is of a wrong type: each by itself.
            for i, row in enumerate(rows):
                if notes[i] is None:
                    error = _misfit(row, columns)
                    if error is not None:
                        rows[i], notes[i] = {}, self._note(Tried(error=error))
            made = pa.RecordBatch.from_pylist(rows, schema=columns)
        return self._joined(made, batch.take(pa.array(sources, pa.int64())), notes)

    def _fits(self, result: dict[str, Any], names: set[str]) -> None:
        unknown = [str(name) for name in result if name not in names and name != "_kafka"]
        if unknown:
            msg = f"the function returned {', '.join(map(repr, sorted(unknown)))}, which the schema does not declare"
            raise ResultError(msg)
        for name in self.required:
            if result.get(name) is None:
                msg = f"the function returned no {name!r}, which is declared NOT NULL"
                raise ResultError(msg)

    # A batch at a time

    def _batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch, or its halves where it fails, until the failing record stands alone."""
        # Whatever follows a failure is done outside of its handler, or the next exception would name it as context.
        tried = try_again(None, lambda: self._call(batch))
        if tried.error is not None and (is_away(tried.error) or batch.num_rows == 1):
            # Not the record's fault, or its own: the same again, as often as the policy says.
            tried = try_again(self.retry, _first_fails(tried.error, lambda: self._call(batch)))
        if tried.error is None:
            yield self._joined(tried.result, batch, [None] * batch.num_rows)
        elif batch.num_rows == 1:
            none = pa.RecordBatch.from_pylist([{}], schema=self._columns)
            yield self._joined(none, batch, [self._note(tried)])
        elif is_away(tried.error):
            raise tried.error
        else:
            middle = batch.num_rows // 2
            yield from self._batch(batch.slice(0, middle))
            yield from self._batch(batch.slice(middle))

    def _call(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.batch == "pandas":
            result = self.fn(batch.to_pandas())
            own = result.drop(columns=[c for c in ("_kafka",) if c in result.columns])
            self._covers(own.columns)
            table = pa.Table.from_pandas(own.reindex(columns=self._columns.names), preserve_index=False)
        else:
            result = self.fn(batch)
            table = pa.table(result) if isinstance(result, pa.RecordBatch) else result
            self._covers(name for name in table.column_names if name != "_kafka")
        if table.num_rows != batch.num_rows:
            msg = f"the function returned {table.num_rows} rows for {batch.num_rows}"
            raise ResultError(msg)
        arrays = []
        for field in self._columns:
            column = table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows)
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            try:
                arrays.append(array.cast(field.type))
            except pa.ArrowException as error:
                msg = f"the function returned {field.name!r} as {array.type}, declared {field.type}: {error}"
                raise ResultError(msg) from None
            if field.name in self.required and arrays[-1].null_count:
                msg = f"the function returned no {field.name!r}, which is declared NOT NULL"
                raise ResultError(msg)
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns)

    def _covers(self, names: Iterable[str]) -> None:
        unknown = [str(name) for name in names if name not in self._columns.names]
        if unknown:
            msg = f"the function returned {', '.join(map(repr, sorted(unknown)))}, which the schema does not declare"
            raise ResultError(msg)

    # Both

    def _joined(self, made: pa.RecordBatch, source: pa.RecordBatch, notes: list[str | None]) -> pa.RecordBatch:
        arrays = list(made.columns)
        if "_kafka" in self.schema.names:
            arrays.append(source.column("_kafka").cast(self.schema.field("_kafka").type))
        arrays.append(pa.array(notes, pa.string()))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _note(self, tried: Tried) -> str:
        error = tried.error
        if error is None:
            msg = "there is no fault to note"
            raise RuntimeError(msg)
        if self.raises or is_away(error):
            raise error
        fault = Fault.from_exception(Component.STAGE, _users(error))
        return RowFault(fault, self.action, retries=tuple(map(retry_of, tried.failed))).to_json()


def _first_fails(error: Exception, call: Callable[[], Any]) -> Callable[[], Any]:
    """A call whose first time is over: it failed with the error."""
    pending = [error]

    def again() -> Any:
        if pending:
            raise pending.pop()
        return call()

    return again


def _listed(result: Any) -> list[dict[str, Any]]:
    if result is None:
        return []
    results = result if isinstance(result, list | tuple) else [result]
    for each in results:
        if not isinstance(each, dict):
            msg = f"the function returned {type(each).__name__}; return a dict, a list of dicts, or None"
            raise ResultError(msg)
    return list(results)


def _misfit(row: dict[str, Any], columns: pa.Schema) -> ResultError | None:
    for field in columns:
        try:
            pa.array([row.get(field.name)], type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return ResultError(f"the function returned {field.name!r} that is no {field.type}: {error}")
    return None


def _users(error: Exception) -> Exception:
    """The exception with the user's frames only."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith(("row_worker.py", "policies/retry.py")):
        trace = trace.tb_next
    return error.with_traceback(trace)
