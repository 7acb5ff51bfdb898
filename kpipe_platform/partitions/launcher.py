"""Dagster's default run launcher, which also tells run monitoring whether a run's process is there.

Dagster's own does not, so a run whose process was lost with its container stays started for ever::

    run_launcher:
      module: kpipe_platform.partitions.launcher
      class: KafkaRunLauncher
    run_monitoring:
      enabled: true

It is for code servers that `dagster api grpc` runs on a port, and for `dagster dev`. It is not for
`dagster code-server start` on a port, which forgets its runs when it reloads their code.
"""

from __future__ import annotations

import dagster as dg

from kpipe_platform.partitions.lost import Process, process_of
from kpipe_platform.resources._compat import CheckRunHealthResult, WorkerStatus

__all__ = ["KafkaRunLauncher"]


class KafkaRunLauncher(dg.DefaultRunLauncher):
    """Starts runs as Dagster does, beside the code server; it has no settings."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """It asks the code server."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether a run's process is there.

        Only a server that answers and does not run it is taken at its word. While none answers, the process may have
        outlived its server, and the run is left to an operator: `kpipe partitions release`.
        """
        process = process_of(run)
        if process is Process.GONE:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "its code server does not run it")
        return CheckRunHealthResult(WorkerStatus.RUNNING, process.value)
