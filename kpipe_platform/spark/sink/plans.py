"""What a DataFrame is computed from, and DataFrames of plans."""

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


# For each session of this process the JVM's class of frames, whose name takes a call to the JVM for each of its parts.
_FRAMES: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """A frame of a plan in this process's JVM."""
    if session not in _FRAMES:
        _FRAMES[session] = cast("Any", session._jvm).org.apache.spark.sql.classic.Dataset
    return DataFrame(_FRAMES[session].ofRows(session._jsparkSession, plan), session)
