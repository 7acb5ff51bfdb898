"""Caching of rows that are read more than once. Dropping them also works if the engine is gone."""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame, is_remote

from kpipe_platform.spark._compat import is_cache_filled

logger = logging.getLogger(__name__)


class RowCache:
    """Caches rows: they are computed at their first use after ``keep``, and not again until ``drop``.

    Args:
        frame: The rows. Frames derived from it earlier also use the cache if they run after ``keep``.
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
        """Whether a job has filled the cache. Always False on Spark Connect, where a client cannot determine it."""
        return self.is_kept and not is_remote() and is_cache_filled(self._frame)

    def drop(self) -> None:
        """Drop the cached rows. A failure is only logged, so that it does not hide an earlier error."""
        if not self.is_kept:
            return
        self.is_kept = False
        drop_cached(self._frame)


def drop_cached(frame: DataFrame) -> None:
    """Drop a frame's cached rows. A failure is only logged."""
    # Spark's tasks import this module, too. The engine needs packages that executors lack.
    from kpipe_platform.spark.engine.attach import is_reachable

    try:
        if is_reachable(frame.sparkSession):
            frame.unpersist()
    except Exception as error:  # noqa: BLE001  # an engine that is gone has no cached rows left
        logger.warning("could not drop cached rows: %s", error)
