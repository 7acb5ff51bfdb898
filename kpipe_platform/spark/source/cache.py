"""Rows that are cached while somebody needs them again, also when the engine that holds them is gone."""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from kpipe_platform.spark.engine.attach import is_reachable

logger = logging.getLogger(__name__)


class RowCache:
    """Rows that can be cached: computed at their first use after ``keep``, and not again until ``drop``.

    Args:
        frame: The rows. Frames that were made of it before use the cache too, if they run after ``keep``.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self.is_kept = False

    def keep(self) -> None:
        """Cache the rows from now on."""
        if not self.is_kept:
            self._frame.persist()
            self.is_kept = True

    @property
    def is_filled(self) -> bool:
        """Whether a job computed rows into the cache; False on Connect, where a client cannot see it."""
        if not self.is_kept or is_remote():
            return False
        found = self._frame.sparkSession._jsparkSession.sharedState().cacheManager().lookupCachedData(self._frame._jdf)
        return (
            bool(found.isDefined()) and found.get().cachedRepresentation().cacheBuilder().isCachedColumnBuffersLoaded()
        )

    def drop(self) -> None:
        """Drop what is cached. A failure is only logged: the error that led here is the one to show."""
        if not self.is_kept:
            return
        self.is_kept = False
        drop_cached(self._frame)


def drop_cached(frame: DataFrame) -> None:
    """Drop a frame's cached rows; a failure is only logged."""
    try:
        if is_reachable(frame.sparkSession):
            frame.unpersist()
    except Exception as error:  # noqa: BLE001  # an engine that is gone has no cached rows left
        logger.warning("could not drop cached rows: %s", error)
