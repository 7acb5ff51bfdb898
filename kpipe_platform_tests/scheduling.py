"""Dividing the suite's files among processes (pytest-xdist).

A file's tests stay together, since they share fixtures. The slowest files start first, so that none of them runs alone
at the end. One process takes no file that uses Spark: it runs beside the others, because Kafka's tests mostly wait.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from kpipe_platform_tests.order import ROOT, uses_spark

# Fewer processes than this all take every file.
_PROCESSES_WITH_ONE_FOR_KAFKA = 3


class FileScheduling(LoadScopeScheduling):
    """Whole files in the order of collection; with three processes and more, one takes no file that uses Spark."""

    _without_spark: WorkerController | None = None

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0]

    def _next_of(self, node: WorkerController) -> str | None:
        if self._without_spark is None and len(self.nodes) >= _PROCESSES_WITH_ONE_FOR_KAFKA:
            self._without_spark = self.nodes[-1]
        files = list(self.workqueue)
        with_spark = [file for file in files if uses_spark(ROOT / file)]
        without = [file for file in files if file not in with_spark]
        # The others take Kafka's files only when no file with Spark is left.
        wanted = without if node is self._without_spark else with_spark or without
        return wanted[0] if wanted else None

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_of(node)
        if file is not None:
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._next_of(node) is not None:
            super()._reschedule(node)
        elif not node.shutting_down:
            node.shutdown()
