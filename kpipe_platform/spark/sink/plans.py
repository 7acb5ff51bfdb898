"""Finding the sources that a DataFrame reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, is_remote

from kpipe_platform.spark._compat import analyzed, connect_plan, connect_plans, leaves_of


def reads_only(frame: DataFrame, sources: Sequence[DataFrame]) -> bool:
    """Whether a frame reads only what the given sources read, and rows that the driver holds.

    If so, one task can compute the frame in about the time that it needs for the sources. Only the plan is inspected;
    no job runs.

    Args:
        frame: The frame.
        sources: The sources that it may read.
    """
    if is_remote():
        known = {id(leaf) for source in sources for leaf in leaves_of(connect_plan(source))}
        return all(id(leaf) in known or _is_held(leaf) for leaf in leaves_of(connect_plan(frame)))
    own = [leaf for source in sources for leaf in _relations(source)]
    return all(any(leaf.equals(one) for one in own) for leaf in _relations(frame))


def _is_held(leaf: Any) -> bool:
    return isinstance(leaf, connect_plans().LocalRelation)


def _relations(frame: DataFrame) -> list[Any]:
    """What a plan in this process's JVM reads: relations, tables or other leaves, without the driver's own rows."""
    leaves = analyzed(frame).collectLeaves()
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
