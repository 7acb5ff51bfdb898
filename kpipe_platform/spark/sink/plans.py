"""Finding the sources that a DataFrame reads, and making DataFrames from plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote


def reads_only(frame: DataFrame, sources: Sequence[DataFrame]) -> bool:
    """Whether a frame reads only what the given sources read, and rows that the driver holds.

    If so, one task can compute the frame in about the time that it needs for the sources. Only the plan is inspected;
    no job runs.

    Args:
        frame: The frame.
        sources: The sources that it may read.
    """
    if is_remote():
        known = {id(leaf) for source in sources for leaf in _leaves(source._plan)}
        return all(id(leaf) in known or _is_held(leaf) for leaf in _leaves(frame._plan))
    own = [leaf for source in sources for leaf in _relations(source)]
    return all(any(leaf.equals(one) for one in own) for leaf in _relations(frame))


def _leaves(plan: Any) -> Iterator[Any]:
    """The leaves of a Spark Connect client's plan."""
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
    """What a plan in this process's JVM reads: relations, tables or other leaves, without the driver's own rows."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = leaf.nodeName()
        # If a plan uses a source twice, it has two leaves with the same relation or table.
        if kind == "LogicalRelation":
            found.append(leaf.relation())
        elif kind == "DataSourceV2Relation":
            found.append(leaf.table())
        elif kind != "LocalRelation":
            found.append(leaf)
    return found


# The JVM's Dataset class, cached for each session of this process: py4j resolves each part of its name with a JVM call.
_FRAMES: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """Make a DataFrame from a plan in this process's JVM."""
    if session not in _FRAMES:
        _FRAMES[session] = cast("Any", session._jvm).org.apache.spark.sql.classic.Dataset
    return DataFrame(_FRAMES[session].ofRows(session._jsparkSession, plan), session)
