"""A stage that only computes and filters columns: what it makes of each record, beside what it makes nothing of.

Such a stage is written in one pass over the slice: a row for each record that was read, which says what became of it.
Nothing has to be kept to be counted, or to be looked through for faults, next to the stage.
"""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from kpipe_platform.spark.frames import SliceFrames
from kpipe_platform.spark.plans import elements, frame_of

SRC, BAD, MADE = "_kpipe_src", "_kpipe_bad", "_kpipe_made"
"""Columns beside those of the output: index of the record's range (int); all that the dead letter of a record needs
that does not decode (struct, else null); whether the stage has an output of the record (boolean)."""

# An expression that runs in Python, or a query, is taken out of a condition and computed for every row.
_EAGER = ("PYTHON_UDF", "PLAN_EXPRESSION")
# What is safe to read in a row that the stage is not to see.
_PLAIN = ("AttributeReference", "GetStructField")


def row_wise(output: DataFrame, source: SliceFrames) -> DataFrame | None:
    """The output with a row for each record of its source, also for one that the stage does not see or filters out.

    Only the plan is looked at, and nothing runs. It may miss a stage that is row-wise, and takes no other for one. Of a
    record without an output the stage's expressions are not computed, and its columns are null.

    Args:
        output: What the stage returned.
        source: All that the slice is read from.

    Returns:
        The output's columns, SRC, BAD and MADE; None where the output is anything but columns of single records, and on
        Spark Connect, whose client has no analysed plan.
    """
    if is_remote():
        return None
    plan = output._jdf.queryExecution().analyzed()
    return _Rebuilt(output.sparkSession, source).frame(plan)


class _Rebuilt:
    """Rebuilds a plan on another source, with columns beside those that it has.

    Source: Spark's Catalyst (``Project``, ``Filter``, ``Alias``), as of Spark 4.2.
    """

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

    def frame(self, plan: Any) -> DataFrame | None:
        """The plan of an output, rebuilt."""
        levels = self._levels(plan)
        if levels is None:
            return None
        rebuilt, beside = self._base()
        no = self._expressions.Literal.FalseLiteral()
        for level in reversed(levels):
            kind = level.nodeName()
            if kind == "Project":
                columns = [self._guarded(column, beside[-1]) for column in elements(level.projectList())]
                rebuilt = self._project(self._sequence([*columns, *beside]), rebuilt)
            elif kind == "Filter":
                columns = list(elements(level.child().output()))
                holds = self._expressions.Coalesce(self._sequence([level.condition(), no]))
                made = self._alias(self._if(beside[-1], holds, no), MADE, self._expressions.NamedExpression.newExprId())
                rebuilt = self._project(self._sequence([*columns, *beside[:-1], made]), rebuilt)
                beside = [*beside[:-1], made.toAttribute()]
        return frame_of(self._session, rebuilt)

    def _levels(self, plan: Any) -> list[Any] | None:
        """The plan's nodes above the source, from the top; None where one of them is not row by row."""
        found = []
        while not plan.equals(self._good):
            kind = plan.nodeName()
            if kind == "Project":
                expressions = list(elements(plan.projectList()))
            elif kind == "Filter":
                expressions = [plan.condition()]
            elif kind == "SubqueryAlias":
                expressions = []
            else:
                return None
            if not all(self._is_lazy(expression) for expression in expressions):
                return None
            found.append(plan)
            plan = plan.child()
        return found

    def _is_lazy(self, expression: Any) -> bool:
        """Whether an expression says the same of a row whatever other rows there are, and only when it is asked."""
        return expression.deterministic() and not any(expression.containsPattern(kind) for kind in self._eager)

    def _base(self) -> tuple[Any, list[Any]]:
        """The source's rows under the names by which the stage knows them, and the columns beside."""
        source = self._source
        beside = [F.col("src").alias(SRC), F.col("bad").alias(BAD), F.col("bad").isNull().alias(MADE)]
        plan = source.decoded.select(*source.columns, *beside)._jdf.queryExecution().analyzed()
        known = list(elements(self._good.output()))
        made = list(elements(plan.output()))
        renamed = [self._alias(one, as_.name(), as_.exprId()) for one, as_ in zip(made, known, strict=False)]
        others = made[len(known) :]
        return self._project(self._sequence([*renamed, *others]), plan), others

    def _guarded(self, column: Any, made: Any) -> Any:
        """A column that is null, and not computed, where the stage makes nothing of the record."""
        if column.getClass().getSimpleName() != "Alias":
            return column
        inside = column.child()
        if inside.getClass().getSimpleName() in _PLAIN:
            return column
        nothing = self._expressions.Literal(None, inside.dataType())
        return self._alias(self._if(made, inside, nothing), column.name(), column.exprId())

    def _if(self, condition: Any, then: Any, otherwise: Any) -> Any:
        return self._expressions.If(condition, then, otherwise)

    def _alias(self, expression: Any, name: str, expression_id: Any) -> Any:
        nothing = self._sequence([])
        return self._expressions.Alias(expression, name, expression_id, nothing, self._none, nothing)
