"""Spark's Python daemon, with what tasks import loaded before the first worker is forked.

Named by ``spark.python.daemon.module`` of a local session and of a Spark Connect server. A worker forked from here
costs about 20 ms and does not import pandas and Arrow again, which takes a second. That matters where workers do not
last: one whose task failed ends, and the server turns the reuse of workers off, because a worker that served one run
would keep the modules of that run's code and silently compute the next run, whose code was edited in between, by the
old one.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyspark.sql.pandas.serializers  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
