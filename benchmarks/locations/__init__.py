"""Code locations of many assets, for the case ``load_1000``: the same assets of kpipe and of Dagster alone."""

from __future__ import annotations

PARTITIONS = 4
ASSETS_A_TOPIC = 10


def topics_of(assets: int) -> int:
    """How many topics so many assets read."""
    return -(-assets // ASSETS_A_TOPIC)
