"""Spark's Python daemon, which imports the packages of tasks before it forks the first worker.

A local session and a Spark Connect server set it with ``spark.python.daemon.module``. Forking a worker from it takes
about 20 ms, and the worker need not import pandas and Arrow again, which takes a second. This matters if workers are
short-lived. A worker ends when its task fails. The server also disables the reuse of workers, because a reused worker
would keep the modules of an earlier run and silently run old code after the user has edited it.
"""

from __future__ import annotations

from kpipe_platform.spark._compat import run_worker_daemon

if __name__ == "__main__":
    run_worker_daemon()
