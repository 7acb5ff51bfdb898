"""Single-pass writing: one row for each record read, with its output, its fault, or neither.

A stage that only computes and filters columns of single records needs no cache, no search for faults and no sort: one
pass decodes its slice and applies the stage. Spark has no public call that identifies such a stage, so this module
inspects the stage's plan: Catalyst's plan in a session of this process, the client's plan on Spark Connect. All other
stages, and plans that this module does not recognize, take the general path of `kpipe_platform.spark.sink.rows`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from kpipe_platform.spark import _compat
from kpipe_platform.spark.source.rows import SliceFrames

logger = logging.getLogger(__name__)

SRC, BAD, MADE = "_kpipe_src", "_kpipe_bad", "_kpipe_made"
"""Columns added to those of the output: index of the record's range (int); data for the dead letter of a record that
does not decode (struct, null for a good record); whether the stage has an output for the record (boolean)."""


class SinglePass(NamedTuple):
    """A stage's output with one row for each record of its source.

    Args:
        frame: The output's columns, SRC, BAD and MADE. For a record without an output, the columns that the stage
            computes are null, and its expressions are not evaluated.
        is_copy: Whether every record has an output, which only copies columns of its source.
    """

    frame: DataFrame
    is_copy: bool


def rows_per_record(output: DataFrame, source: SliceFrames) -> SinglePass | None:
    """Rebuild a stage's output with one row for each record of its source.

    Records that do not decode and records that the stage filters out have rows too. Only the plan is inspected; no job
    runs. The check may reject a stage that could be written in a single pass, but never accepts one that could not.

    Args:
        output: The stage's output.
        source: The slice's only source.

    Returns:
        The rows; None if the output is not computed record by record.
    """
    try:
        return (_connect if is_remote() else _classic)(output, source)
    except Exception as error:  # noqa: BLE001  # unexpected plans take the general path
        logger.debug("not written in a single pass: %s", error)
        return None


def _beside() -> list[Column]:
    return [F.col("src").alias(SRC), F.col("bad").alias(BAD), F.col("bad").isNull().alias(MADE)]


# ------------------------------------------------------------------------------------- a session of this process

# Spark moves Python functions and subqueries out of conditional expressions and evaluates them for every row.
_EAGER = ("PYTHON_UDF", "PLAN_EXPRESSION")


def _classic(output: DataFrame, source: SliceFrames) -> SinglePass | None:
    return _Catalyst(output.sparkSession, source).rebuilt(_compat.analyzed(output))


class _Catalyst:
    """Rebuilds a plan on all decoded rows of the source, and adds the columns SRC, BAD and MADE."""

    def __init__(self, session: SparkSession, source: SliceFrames) -> None:
        self._session = session
        self._source = source
        self._good = _compat.analyzed(source.good)
        jvm = _compat.jvm(session)
        catalyst = jvm.org.apache.spark.sql.catalyst
        self._expressions = catalyst.expressions
        self._project = catalyst.plans.logical.Project
        self._sequence = jvm.PythonUtils.toSeq
        self._none = jvm.scala.Option.empty()
        self._eager = [getattr(catalyst.trees.TreePattern, name)() for name in _EAGER]

    def rebuilt(self, plan: Any) -> SinglePass | None:
        levels = self._levels(plan)
        if levels is None:
            return None
        rebuilt, beside = self._base()
        is_copy = not self._source.can_fault
        no = self._expressions.Literal.FalseLiteral()
        for level in reversed(levels):
            kind = level.nodeName()
            if kind == "Project":
                columns = list(_elements(level.projectList()))
                is_copy = is_copy and all(map(self._is_plain, columns))
                columns = [self._guarded(column, beside[-1]) for column in columns]
                rebuilt = self._project(self._sequence([*columns, *beside]), rebuilt)
            elif kind == "Filter":
                is_copy = False
                columns = list(_elements(level.child().output()))
                holds = self._expressions.Coalesce(self._sequence([level.condition(), no]))
                made = self._alias(self._if(beside[-1], holds, no), MADE, self._expressions.NamedExpression.newExprId())
                rebuilt = self._project(self._sequence([*columns, *beside[:-1], made]), rebuilt)
                beside = [*beside[:-1], made.toAttribute()]
        return SinglePass(_compat.frame_of(self._session, rebuilt), is_copy)

    def _levels(self, plan: Any) -> list[Any] | None:
        """The plan's nodes above the source, from the top; None if one of them does not work row by row."""
        levels = []
        while not plan.equals(self._good):
            kind = plan.nodeName()
            if kind == "Project":
                expressions = list(_elements(plan.projectList()))
            elif kind == "Filter":
                expressions = [plan.condition()]
            elif kind == "SubqueryAlias":
                expressions = []
            else:
                return None
            if not all(self._is_lazy(expression) for expression in expressions):
                return None
            levels.append(plan)
            plan = plan.child()
        return levels

    def _is_lazy(self, expression: Any) -> bool:
        """Whether a value depends only on its row, and a conditional expression can prevent its evaluation."""
        return expression.deterministic() and not any(expression.containsPattern(kind) for kind in self._eager)

    def _base(self) -> tuple[Any, list[Any]]:
        """A plan of all decoded rows, with the column names and ids that the stage uses, and the added columns."""
        source = self._source
        plan = _compat.analyzed(source.decoded.select(*source.columns, *_beside()))
        known = list(_elements(self._good.output()))
        columns = list(_elements(plan.output()))
        renamed = [self._alias(one, as_.name(), as_.exprId()) for one, as_ in zip(columns, known, strict=False)]
        beside = columns[len(known) :]
        return self._project(self._sequence([*renamed, *beside]), plan), beside

    @staticmethod
    def _is_plain(column: Any) -> bool:
        """Whether it is a column or a struct field, which is safe to read in a row that the stage must not process."""
        while _kind(column) in ("Alias", "GetStructField"):
            column = column.child()
        return _kind(column) == "AttributeReference"

    def _guarded(self, column: Any, made: Any) -> Any:
        """Guard a column: it is null, and not evaluated, if the stage has no output for the record."""
        if _kind(column) != "Alias" or self._is_plain(column):
            return column
        inside = column.child()
        nothing = self._expressions.Literal(None, inside.dataType())
        return self._alias(self._if(made, inside, nothing), column.name(), column.exprId())

    def _if(self, condition: Any, then: Any, otherwise: Any) -> Any:
        return self._expressions.If(condition, then, otherwise)

    def _alias(self, expression: Any, name: str, expression_id: Any) -> Any:
        nothing = self._sequence([])
        return self._expressions.Alias(expression, name, expression_id, nothing, self._none, nothing)


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _elements(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    return (sequence.apply(number) for number in range(sequence.size()))


# ------------------------------------------------------------------------------------------------- Spark Connect

# Functions whose value depends on more than the row.
_REFUSED = {"rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle"}
_REFUSED |= {"monotonically_increasing_id", "spark_partition_id"}
_REFUSED |= {"input_file_name", "input_file_block_start", "input_file_block_length"}
_REFUSED |= {"reflect", "java_method", "try_reflect"}
# These can produce several rows from one.
_REFUSED |= {"window", "session_window", "window_time"}
_SQL_CALL = re.compile(r"([\w.]+)\s*\(")
# Subqueries, window functions, quoted names and comments.
_REFUSED_SQL = re.compile(r'\bselect\b|\(\s*(?:from|table|values)\b|\bover\b|`|"\s*\(|/\*|--', re.IGNORECASE)

# Spark's own functions, for each session.
_BUILT_IN: WeakKeyDictionary[SparkSession, frozenset[str]] = WeakKeyDictionary()


def _built_in(session: SparkSession) -> frozenset[str]:
    """Names that a session resolves to one of Spark's functions or operators, none of which runs in Python.

    A user's Python function can have any name, also that of one of Spark's functions.

    Raises:
        ValueError: The session's own functions come before Spark's.
    """
    # A server that does not have these settings raises an error.
    is_last = session.conf.get("spark.sql.functionResolution.sessionOrder") in ("second", "last")
    if not is_last or session.conf.get("spark.sql.path.enabled") != "false":
        msg = "the session's functions may come before Spark's functions of the same names"
        raise ValueError(msg)
    if session not in _BUILT_IN:
        # The current catalog may not support functions. `listFunctions` describes each function, which takes seconds.
        names = session.sql("SHOW SYSTEM FUNCTIONS IN spark_catalog.default").collect()
        _BUILT_IN[session] = frozenset(row[0].lower() for row in names) - _REFUSED
    return _BUILT_IN[session]


def _connect(output: DataFrame, source: SliceFrames) -> SinglePass | None:
    """Apply the operations in the client's plan of the stage to all decoded rows, with the added columns."""
    plans = _compat.connect_plans()
    columns_of = _compat.columns_of
    built_in = _built_in(output.sparkSession)
    levels: list[Any] = []
    below: Any = _compat.connect_plan(output)
    good = _compat.connect_plan(source.good)
    while below is not good:
        if type(below) is plans.Project or type(below) is plans.WithColumns:
            # `_selected` replaces a star by column names. Within an expression, a star would include the added columns.
            used = [each for each in map(_compat.expression_of, columns_of(below)) if not _compat.is_star(each)]
        elif type(below) is plans.Filter:
            used = [_compat.expression_of(below.filter)]
        elif type(below) in (plans.Drop, plans.WithColumnsRenamed, plans.SubqueryAlias):
            used = []
        else:
            return None
        if not all(_is_lazy(expression, built_in) for expression in used):
            return None
        levels.append(below)
        below = _compat.child_of(below)
    frame = source.decoded.select(*source.columns, *_beside())
    _compat.stand_in(frame, good)
    is_copy = not source.can_fault
    for level in reversed(levels):
        if type(level) is plans.Project:
            is_copy = is_copy and all(_is_plain(_compat.expression_of(column)) for column in columns_of(level))
            frame = frame.select(*_selected(frame, columns_of(level)), SRC, BAD, MADE)
        elif type(level) is plans.WithColumns:
            is_copy = False
            columns = zip(_compat.column_names_of(level), columns_of(level), strict=True)
            frame = frame.withColumns({name: F.when(F.col(MADE), column) for name, column in columns})
        elif type(level) is plans.Filter:
            is_copy = False
            holds = F.coalesce(F.when(F.col(MADE), level.filter), F.lit(False))
            frame = frame.withColumn(MADE, holds)
        elif type(level) is plans.Drop:
            frame = frame.drop(*columns_of(level))
        elif type(level) is plans.WithColumnsRenamed:
            frame = frame.withColumnsRenamed({**_compat.renames_of(level)})
        else:
            frame = frame.alias(_compat.alias_of(level))
        _compat.stand_in(frame, level)
    frame = frame.select(*map(_named, output.columns), SRC, BAD, MADE)
    # The server resolves the plan. If the resulting schema differs from the output's, take the general path.
    fields = zip(frame.schema.fields, output.schema.fields, strict=False)
    is_same = all(_typed(one) == _typed(other) for one, other in fields)
    return SinglePass(frame, is_copy) if is_same else None


def _typed(field: StructField) -> tuple[str, str]:
    # Without nullability, because columns are null for records without an output.
    return field.name, field.dataType.simpleString()


def _named(name: str) -> Column:
    return F.col("`{}`".format(name.replace("`", "``")))


def _selected(frame: DataFrame, columns: Sequence[Any]) -> Iterator[Column]:
    """Columns of a selection; computed columns are null if the stage has no output for the record.

    Raises:
        ValueError: A computed column has no alias, so its name is unknown.
    """
    for column in columns:
        expression = _compat.expression_of(column)
        if _compat.is_star(expression):
            yield from (_named(name) for name in frame.columns if name not in (SRC, BAD, MADE))
        elif _is_plain(expression):
            yield column
        elif name := _alias(expression):
            yield F.when(F.col(MADE), _compat.column_of(_compat.child_of(expression))).alias(name)
        else:
            msg = f"the name of {expression} is not known"
            raise ValueError(msg)


def _alias(expression: Any) -> str | None:
    """The only name of an expression; None if it has none, or metadata too."""
    if type(expression) is not _compat.connect_expressions().ColumnAlias:
        return None
    names: Sequence[str] = _compat.alias_of(expression)
    return names[0] if len(names) == 1 and _compat.metadata_of(expression) is None else None


def _is_plain(expression: Any) -> bool:
    """Whether it is a column or a struct field, which is safe to read in a row that the stage must not process."""
    kinds = _compat.connect_expressions()
    while type(expression) in (kinds.ColumnAlias, kinds.UnresolvedExtractValue):
        if type(expression) is kinds.UnresolvedExtractValue:
            # A missing array element is an error, so only literal field names are safe.
            key = _compat.extraction_of(expression)
            if type(key) is not kinds.LiteralExpression or not isinstance(_compat.literal_of(key), str):
                return False
        expression = _compat.child_of(expression)
    return type(expression) is kinds.ColumnReference


def _is_lazy(expression: Any, built_in: Collection[str]) -> bool:
    """Whether a value depends only on its row, and a conditional expression can prevent its evaluation."""
    expressions = _compat.connect_expressions()
    known = {
        expressions.CaseWhen,
        expressions.CastExpression,
        expressions.ColumnAlias,
        expressions.ColumnReference,
        expressions.LambdaFunction,
        expressions.LiteralExpression,
        expressions.SQLExpression,
        expressions.UnresolvedExtractValue,
        expressions.UnresolvedFunction,
        expressions.UnresolvedNamedLambdaVariable,
    }
    lazy = []

    def look(each: Any) -> None:
        if type(each) is expressions.UnresolvedFunction:
            is_known = _compat.function_name(each).lower() in built_in
            lazy.append(is_known and not _compat.distinct_function(each))
        elif type(each) is expressions.SQLExpression:
            lazy.append(_is_lazy_sql(_compat.sql_of(each), built_in))
        else:
            lazy.append(type(each) in known)

    expression.foreach(look)
    return all(lazy)


def _is_lazy_sql(text: str, built_in: Collection[str]) -> bool:
    # A keyword before a parenthesis, such as THEN, may also be a call of a user's function with that name.
    calls = (name.lower() for name in _SQL_CALL.findall(text))
    return _REFUSED_SQL.search(text) is None and all(name in built_in for name in calls)
