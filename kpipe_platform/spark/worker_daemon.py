"""Spark's Python daemon, with what every task of a slice imports loaded before the first worker is forked.

Named by ``spark.python.daemon.module`` of a Spark Connect server, which also turns the reuse of workers off: a worker
that served one run would keep the modules of that run's code, and the next run, whose code was edited in between,
would silently be computed by the old one. A worker forked from here starts with nothing of a user's and costs about
20 ms.
"""

from __future__ import annotations

from pyspark.daemon import manager

import kpipe_platform.spark.row_worker
import kpipe_platform.spark.writer_task  # noqa: F401

if __name__ == "__main__":
    manager()
