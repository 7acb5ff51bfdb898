"""Cancelling Spark jobs: the same on classic and over Connect."""

from __future__ import annotations

from typing import cast

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote


def cancel_jobs(session: object) -> None:
    """Cancel every running job of the session, from whichever thread.

    Tags would tell one run's jobs from another's, but on classic Spark only the thread that tagged them can cancel
    them; and a process that runs several slices is interrupted as a whole.
    """
    spark = cast("SparkSession", session)
    if is_remote():
        spark.interruptAll()
    else:
        # `interruptAll` does not find every job of a session in this process, which has no other jobs than its own.
        spark.sparkContext.cancelAllJobs()
