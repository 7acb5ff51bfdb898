"""Canceling Spark jobs, on classic Spark and Spark Connect."""

from __future__ import annotations

from typing import cast

from pyspark.sql import SparkSession, is_remote

from kpipe_platform.spark.failures import classify


def tag_jobs(session: object, tag: str) -> None:
    """Tag the jobs that this thread starts from now on, so that `cancel_jobs` can find them.

    On classic Spark the tag is set on the context, because a session's tag is visible only to the thread that set it.

    Raises:
        EngineUnavailableError: The session is gone.
    """
    spark = cast("SparkSession", session)
    try:
        if is_remote():
            spark.addTag(tag)
        else:
            spark.sparkContext.addJobTag(tag)
    except Exception as error:
        raise classify(error, "the session's tags") from error


def cancel_jobs(session: object, tag: str) -> None:
    """Cancel the running jobs with a tag. Can be called from any thread; other jobs of the session continue."""
    spark = cast("SparkSession", session)
    if is_remote():
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)
