"""Letting go of cached rows, also when the engine that holds them is gone."""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame

from kpipe_platform.spark.connect_sessions import is_reachable

logger = logging.getLogger(__name__)


def drop_cached(frame: DataFrame) -> None:
    """Drop a frame's cached rows. A failure is only logged: the error that led here is the one to show."""
    try:
        if is_reachable(frame.sparkSession):
            frame.unpersist()
    except Exception as error:  # noqa: BLE001  # an engine that is gone has no cached rows left
        logger.warning("could not drop cached rows: %s", error)
