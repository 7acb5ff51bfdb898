"""What a DataFrame is computed from, and frames of plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote


def reads_only(frame: DataFrame, sources: Sequence[DataFrame]) -> bool:
    """Whether a frame is computed from nothing but what these are computed from, and from rows that the driver holds.

    So one task can compute it in about the time in which it computes the sources. A look at the plan; nothing runs.

    Args:
        frame: The frame.
        sources: What it may read.
    """
    if is_remote():
        known = {id(leaf) for source in sources for leaf in _leaves(source._plan)}
        return all(id(leaf) in known or _is_held(leaf) for leaf in _leaves(frame._plan))
    own = [leaf for source in sources for leaf in _relations(source)]
    return all(any(leaf.equals(one) for one in own) for leaf in _relations(frame))


def _leaves(plan: Any) -> Iterator[Any]:
    """Leaves of a Connect client's plan."""
    from pyspark.sql.connect.plan import LogicalPlan

    below = [each for each in vars(plan).values() if isinstance(each, LogicalPlan)]
    if not below:
        yield plan
    for each in below:
        yield from _leaves(each)


def _is_held(leaf: Any) -> bool:
    from pyspark.sql.connect.plan import LocalRelation

    return isinstance(leaf, LocalRelation)


def _relations(frame: DataFrame) -> list[Any]:
    """What a plan in this process's JVM reads: a data source's relation, else the leaf; not the driver's own rows."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = leaf.nodeName()
        # A plan that uses a source twice has a copy of the leaf, around the same relation or table.
        if kind == "LogicalRelation":
            found.append(leaf.relation())
        elif kind == "DataSourceV2Relation":
            found.append(leaf.table())
        elif kind != "LocalRelation":
            found.append(leaf)
    return found


Path = tuple[str, ...]
"""A column, and the fields inside of it."""


def copied_columns(frame: DataFrame, source: DataFrame) -> list[tuple[str, Path]] | None:
    """What a frame copies, where it has each row of its source once and nothing but columns, or their fields, of it.

    A look at the plan; nothing runs. It may miss a copy, and never takes anything else for one.

    Args:
        frame: The frame.
        source: What it may copy.

    Returns:
        Its columns, in order, each with where it is in the source; None where it is anything else.
    """
    if is_remote():
        return _copied_by_name(frame._plan, source)
    plan = source._jdf.queryExecution().analyzed()
    return _copied_by_id(frame._jdf.queryExecution().analyzed(), plan)


def _copied_by_name(plan: Any, source: DataFrame) -> list[tuple[str, Path]] | None:
    from pyspark.sql.connect.expressions import ColumnAlias, ColumnReference
    from pyspark.sql.connect.plan import Project

    if plan is source._plan:
        return [(name, (name,)) for name in source.columns]
    below = _copied_by_name(plan._child, source) if type(plan) is Project else None
    if below is None:
        return None
    known, found = dict(below), []
    if len(known) != len(below):
        return None
    for column in plan._columns:
        each: Any = column._expr
        name = None
        if isinstance(each, ColumnAlias):
            if len(each._alias) != 1:
                return None
            each, name = each._child, each._alias[0]
        if not isinstance(each, ColumnReference) or "`" in each._unparsed_identifier:
            return None
        first, *inside = each._unparsed_identifier.split(".")
        if first not in known:
            return None
        found.append((name or [first, *inside][-1], (*known[first], *inside)))
    return found


def _copied_by_id(plan: Any, source: Any) -> list[tuple[str, Path]] | None:
    if plan.equals(source):
        return [(each.name(), (each.name(),)) for each in elements(source.output())]
    if plan.nodeName() != "Project":
        return None
    below = _copied_by_id(plan.child(), source)
    if below is None:
        return None
    ids = [each.exprId() for each in elements(plan.child().output())]
    paths = [path for _, path in below]
    found = []
    for each in elements(plan.projectList()):
        path = _path(each, ids, paths)
        if path is None:
            return None
        found.append((each.name(), path))
    return found


def _path(expression: Any, ids: list[Any], paths: list[Path]) -> Path | None:
    kind = expression.getClass().getSimpleName()
    if kind == "Alias":
        return _path(expression.child(), ids, paths)
    if kind == "GetStructField":
        inside = _path(expression.child(), ids, paths)
        return None if inside is None else (*inside, expression.extractFieldName())
    if kind == "AttributeReference":
        wanted = expression.exprId()
        return next((path for known, path in zip(ids, paths, strict=True) if known.equals(wanted)), None)
    return None


def elements(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    return (sequence.apply(number) for number in range(sequence.size()))


# For each session of this process the JVM's class of frames, whose name takes a call to the JVM for each of its parts.
_FRAMES: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """A frame of a plan in this process's JVM."""
    if session not in _FRAMES:
        _FRAMES[session] = cast("Any", session._jvm).org.apache.spark.sql.classic.Dataset
    return DataFrame(_FRAMES[session].ofRows(session._jsparkSession, plan), session)
