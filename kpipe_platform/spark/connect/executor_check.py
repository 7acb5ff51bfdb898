"""Checks, before the first slice, that a cluster's executors have the Python and the packages that slices need."""

from __future__ import annotations

import platform
import re
import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from kpipe_platform.errors import EngineUnavailableError, EnvironmentSetupError, KpipeError
from kpipe_platform.spark.causes import cause_of

__all__ = ["check_executors"]

_MISSING = re.compile(r"No module named '?([\w.]+)|Cannot run program \"([^\"]+)\"|(PYTHON_VERSION_MISMATCH)")
_PACK = "pack them with kpipe spark pack, then: kpipe spark start --master ... --archive kpipe-executors.tar.gz"


def check_executors(session: SparkSession, deadline_s: float) -> None:
    """Run one task per core of the cluster. Each imports the packages that a slice's tasks import.

    Args:
        session: The session of the server.
        deadline_s: Deadline for all tasks, seconds. Executors start within seconds, then fetch jars and the archive.

    Raises:
        EnvironmentSetupError: Executors lack packages, or have a different Python.
        EngineUnavailableError: The cluster ran no task in time, or a task failed for another reason.
    """
    answered: list[BaseException | None] = []
    # Spark waits forever for executors, so the job runs in another thread.
    working = threading.Thread(target=_run, args=(session, answered), daemon=True)
    working.start()
    working.join(deadline_s)
    if not answered:
        session.sparkContext.cancelAllJobs()
        msg = f"The cluster ran no task within {deadline_s:.0f} s."
        fix = (
            "check on the master's web page that workers have free cores and memory (spark.cores.max, "
            "spark.executor.memory), and check that executors can reach the driver (spark.driver.host)"
        )
        raise EngineUnavailableError(msg, fix=fix)
    if answered[0] is not None:
        raise _typed(answered[0]) from answered[0]


def _run(session: SparkSession, answered: list[BaseException | None]) -> None:
    try:
        tasks = max(session.sparkContext.defaultParallelism, 1)
        session.range(0, tasks, 1, tasks).mapInArrow(_import_all, "python string").collect()
    except BaseException as error:  # noqa: BLE001  # passed to the waiting thread
        answered.append(error)
    else:
        answered.append(None)


def _import_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The task. Its worker imports everything that tasks of a slice import, including the writer's client library."""
    for batch in batches:
        python = [platform.python_version()] * batch.num_rows
        yield pa.RecordBatch.from_pydict({"python": python})


def _typed(error: BaseException) -> KpipeError:
    text = str(error)
    match = _MISSING.search(text)
    if match is None:
        msg = f"The executors of the cluster failed: {cause_of(error)}"
        return EngineUnavailableError(msg, fix="see the stderr of the executors on their workers, then start again")
    module, program, mismatch = match.groups()
    if module:
        msg = f"The executors of the cluster lack the Python package {module.split('.')[0]}."
        return EnvironmentSetupError(msg, fix=_PACK, package=module.split(".")[0])
    if program:
        msg = f"There is no Python {program} on the executors of the cluster."
        return EnvironmentSetupError(
            msg, fix="give one that exists there: kpipe spark start --python python3", python=program
        )
    assert mismatch  # noqa: S101  # the last of the three
    msg = f"The executors run another Python release than this process ({platform.python_version()}): {cause_of(error)}"
    return EnvironmentSetupError(msg, fix="use the same release, for example: kpipe spark start --python python3.11")
