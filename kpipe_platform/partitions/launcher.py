"""Dagster's default run launcher with health checks of the run's process, for run monitoring.

Dagster's own launcher has no such checks, so a run whose process was lost with its container stays started forever::

    run_launcher:
      module: kpipe_platform.partitions.launcher
      class: KafkaRunLauncher
    run_monitoring:
      enabled: true

Use it with code servers that `dagster api grpc` runs on a port, and with `dagster dev`. Do not use it with
`dagster code-server start` on a port: that server loses track of its runs when it reloads their code.
"""

from __future__ import annotations

import dagster as dg

from kpipe_platform.partitions.lost import Process, process_of
from kpipe_platform.resources._compat import CheckRunHealthResult, WorkerStatus

__all__ = ["KafkaRunLauncher"]


class KafkaRunLauncher(dg.DefaultRunLauncher):
    """Dagster's ``DefaultRunLauncher`` with health checks of the run's process. It has no settings."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Always True: the launcher queries the code server."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Check whether a run's process exists.

        A run is reported as lost only if its code server responds and does not run it. If the server does not respond,
        the process may have outlived its server. An operator can release such a run: `kpipe partitions release`.
        """
        process = process_of(run)
        if process is Process.GONE:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "its code server does not run it")
        return CheckRunHealthResult(WorkerStatus.RUNNING, process.value)
