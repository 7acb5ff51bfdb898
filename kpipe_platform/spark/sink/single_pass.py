"""Single-pass writing: one row for each record read, with its output, its fault, or neither.

A stage that only computes and filters columns of single records needs no cache, no search for faults and no sort: one
pass decodes its slice and applies the stage. Spark has no public call that identifies such a stage, so this module
inspects the stage's plan: Catalyst's plan in a session of this process, the client's plan on Spark Connect. All other
stages, and plans that this module does not recognize, take the general path of `kpipe_platform.spark.sink.rows`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField
from pyspark.sql.utils import is_remote

from kpipe_platform.spark.sink.plans import frame_of
from kpipe_platform.spark.source.rows import SliceFrames

logger = logging.getLogger(__name__)

SPARK_VERSION = "4.2"
"""The Spark version whose plans this module supports. `test_single_pass` fails first on another version."""

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
    return _Catalyst(output.sparkSession, source).rebuilt(output._jdf.queryExecution().analyzed())


class _Catalyst:
    """Rebuilds a plan on all decoded rows of the source, and adds the columns SRC, BAD and MADE."""

    def __init__(self, session: SparkSession, source: SliceFrames) -> None:
        self._session = session
        self._source = source
        self._good = source.good._jdf.queryExecution().analyzed()
        jvm = cast("Any", session._jvm)
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
        return SinglePass(frame_of(self._session, rebuilt), is_copy)

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
        plan = source.decoded.select(*source.columns, *_beside())._jdf.queryExecution().analyzed()
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

# Client functions that are not SQL functions, and functions whose value depends on more than the row.
_REFUSED = {"udf", "pandas_udf", "arrow_udf", "udtf", "arrow_udtf", "call_udf", "call_function", "expr"}
_REFUSED |= {"rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle"}
_REFUSED |= {"monotonically_increasing_id", "spark_partition_id"}
# These can produce several rows from one.
_REFUSED |= {"window", "session_window", "window_time"}
# SQL keywords and operator names that can precede a parenthesis and are not in `pyspark.sql.functions`.
_WORDS = {"and", "or", "not", "in", "when", "then", "else", "if", "cast", "try_cast", "between"}
_SQL_CALL = re.compile(r"([\w.]+)\s*\(")


def _connect(output: DataFrame, source: SliceFrames) -> SinglePass | None:
    """Apply the operations in the client's plan of the stage to all decoded rows, with the added columns."""
    from pyspark.sql.connect import plan as plans

    levels: list[Any] = []
    below: Any = output._plan
    while below is not source.good._plan:
        if type(below) is plans.Project or type(below) is plans.WithColumns:
            # `_selected` replaces a star by column names. Within an expression, a star would include the added columns.
            used = [column._expr for column in below._columns if not _is_star(column._expr)]
        elif type(below) is plans.Filter:
            used = [below.filter._expr]
        elif type(below) in (plans.Drop, plans.WithColumnsRenamed, plans.SubqueryAlias):
            used = []
        else:
            return None
        if not all(map(_is_lazy, used)):
            return None
        levels.append(below)
        below = below._child
    frame = source.decoded.select(*source.columns, *_beside())
    _stand_in(frame, source.good._plan)
    is_copy = not source.can_fault
    for level in reversed(levels):
        if type(level) is plans.Project:
            is_copy = is_copy and all(_is_plain(column._expr) for column in level._columns)
            frame = frame.select(*_selected(frame, level._columns), SRC, BAD, MADE)
        elif type(level) is plans.WithColumns:
            is_copy = False
            columns = zip(level._columnNames, level._columns, strict=True)
            frame = frame.withColumns({name: F.when(F.col(MADE), column) for name, column in columns})
        elif type(level) is plans.Filter:
            is_copy = False
            holds = F.coalesce(F.when(F.col(MADE), level.filter), F.lit(False))
            frame = frame.withColumn(MADE, holds)
        elif type(level) is plans.Drop:
            frame = frame.drop(*level._columns)
        elif type(level) is plans.WithColumnsRenamed:
            frame = frame.withColumnsRenamed(dict(level._colsMap))
        else:
            frame = frame.alias(level._alias)
        _stand_in(frame, level)
    frame = frame.select(*map(_named, output.columns), SRC, BAD, MADE)
    # The server resolves the plan. If the resulting schema differs from the output's, take the general path.
    fields = zip(frame.schema.fields, output.schema.fields, strict=False)
    is_same = all(_typed(one) == _typed(other) for one, other in fields)
    return SinglePass(frame, is_copy) if is_same else None


def _typed(field: StructField) -> tuple[str, str]:
    # Without nullability, because columns are null for records without an output.
    return field.name, field.dataType.simpleString()


def _stand_in(frame: DataFrame, plan: Any) -> None:
    """Give a frame the id of the plan that it replaces, so that references such as ``orders.amount`` resolve."""
    cast("Any", frame)._plan._root_plan_id = plan._root_plan_id


def _named(name: str) -> Column:
    return F.col("`{}`".format(name.replace("`", "``")))


def _selected(frame: DataFrame, columns: Sequence[Any]) -> Iterator[Column]:
    """Columns of a selection; computed columns are null if the stage has no output for the record.

    Raises:
        ValueError: A computed column has no alias, so its name is unknown.
    """
    from pyspark.sql.connect.column import Column as ConnectColumn
    from pyspark.sql.connect.expressions import ColumnAlias

    for column in columns:
        expression = column._expr
        if _is_star(expression):
            yield from (_named(name) for name in frame.columns if name not in (SRC, BAD, MADE))
        elif _is_plain(expression):
            yield column
        elif type(expression) is ColumnAlias and len(expression._alias) == 1 and expression._metadata is None:
            inside = cast("Column", ConnectColumn(expression._child))
            yield F.when(F.col(MADE), inside).alias(expression._alias[0])
        else:
            msg = f"the name of {expression} is not known"
            raise ValueError(msg)


def _is_star(expression: Any) -> bool:
    """Whether an expression is a star that selects all columns."""
    from pyspark.sql.connect.expressions import UnresolvedStar

    return type(expression) is UnresolvedStar and expression._unparsed_target is None


def _is_plain(expression: Any) -> bool:
    """Whether it is a column or a struct field, which is safe to read in a row that the stage must not process."""
    from pyspark.sql.connect.expressions import ColumnAlias, ColumnReference, LiteralExpression, UnresolvedExtractValue

    while type(expression) in (ColumnAlias, UnresolvedExtractValue):
        if type(expression) is UnresolvedExtractValue:
            # A missing array element is an error, so only literal field names are safe.
            key = expression._extraction
            if type(key) is not LiteralExpression or not isinstance(key._value, str):
                return False
        expression = expression._child
    return type(expression) is ColumnReference


def _is_lazy(expression: Any) -> bool:
    """Whether a value depends only on its row, and a conditional expression can prevent its evaluation."""
    from pyspark.sql.connect import expressions

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
            lazy.append(not each._is_distinct and _is_known(each._name))
        elif type(each) is expressions.SQLExpression:
            lazy.append(_is_lazy_sql(each._expr))
        else:
            lazy.append(type(each) in known)

    expression.foreach(look)
    return all(lazy)


def _is_lazy_sql(text: str) -> bool:
    # Refuse subqueries, window functions, quoted names and comments.
    is_simple = re.search(r"\bselect\b|\bover\b|`|/\*|--", text, re.IGNORECASE) is None
    return is_simple and all(map(_is_known, _SQL_CALL.findall(text)))


def _is_known(name: str) -> bool:
    """Whether a name is an operator or one of Spark's built-in functions, none of which runs in Python."""
    return re.fullmatch(r"[^\w.]+", name) is not None or name.lower() in _functions()


@cache
def _functions() -> frozenset[str]:
    return frozenset({*_WORDS, *(name.lower() for name in dir(F))} - _REFUSED)
