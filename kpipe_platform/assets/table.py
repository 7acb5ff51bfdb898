"""Asset inputs that load a topic as a table."""

from __future__ import annotations

from typing import Any

import dagster as dg

from kpipe_platform.io_managers.step import READ_TABLE
from kpipe_platform.metadata_keys import READ


def table_input(key: dg.AssetKey | str | None = None, **kwargs: Any) -> dg.AssetIn:
    """Define an input that loads a complete topic as a table: the latest value of each key, without tombstoned keys.

    No offsets move. Use it in ``ins`` of ``@kafka_asset`` or ``@dg.asset`` for a compacted topic.

    Args:
        key: The topic's asset; None: the asset that has the name of the parameter.
        **kwargs: Further arguments of ``dagster.AssetIn``.
    """
    metadata = {**kwargs.pop("metadata", {}), READ: READ_TABLE}
    if key is not None:
        kwargs["key"] = key
    # Without a mapping to all partitions, a partitioned asset would load only one partition of the table.
    kwargs.setdefault("partition_mapping", dg.AllPartitionMapping())
    return dg.AssetIn(metadata=metadata, **kwargs)
