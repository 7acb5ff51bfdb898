"""What is done to runners and brokers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from random import Random

from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.processes import send, wait_until

from .runners import Runner

_AT_WORK_S = 120.0


class Deeds:
    """The deeds, each of which leaves a runner and all brokers at work, or about to be.

    Args:
        brokers: The cluster.
        runner: The runner at work.
        other: Another one, which does not run.
        random: Decides.
        await_progress: Waits until offsets have moved.
    """

    def __init__(
        self,
        brokers: EmbeddedBroker,
        runner: Runner,
        other: Runner,
        random: Random,
        await_progress: Callable[[], None],
    ) -> None:
        self._brokers = brokers
        self._runner = runner
        self._other = other
        self._random = random
        self._await_progress = await_progress
        self.all: dict[str, Callable[[], None]] = {
            "SIGKILL to a Python worker": lambda: self._kill_one_of(runner.workers),
            "SIGKILL to Spark's JVM": lambda: self._kill_one_of(runner.jvms),
            "SIGKILL to the runner alone": lambda: runner.kill([runner.pid]),
            "SIGKILL to the runner, its JVM and its workers": lambda: runner.kill(runner.everyone()),
            "SIGTERM to the runner": runner.terminate,
            "the runner frozen until another has taken over": self._freeze,
            "a second runner at the same partitions": self._compete,
            "SIGKILL to a broker, which starts again": self._kill_broker,
        }

    def _kill_one_of(self, processes: Callable[[], list[int]]) -> None:
        """As soon as there is one, unless the runner ends before."""
        found: list[int] = []

        def is_over() -> bool:
            is_running = self._runner.is_running
            found[:] = processes() if is_running else []
            return bool(found) or not is_running

        wait_until(is_over, "a process to kill", _AT_WORK_S, 0.01)
        if found:
            self._runner.kill([self._random.choice(found)])

    def _freeze(self) -> None:
        """A runner that was away for a while and does not know it: what it still writes must not be seen."""
        frozen = self._runner.everyone()
        send(frozen, signal.SIGSTOP)
        try:
            self._other.start()
            self._await_progress()
        finally:
            send(frozen, signal.SIGCONT)
        self._await_progress()
        self._end_other()

    def _compete(self) -> None:
        before = self._other.said().total()
        self._other.start()
        # Which of the two wins each time is left to chance.
        wait_until(lambda: self._other.said().total() >= before + 3, "three runs of the second", 3 * _AT_WORK_S)
        self._end_other()

    def _end_other(self) -> None:
        # It may have met what makes it end by itself.
        if self._other.is_running:
            self._random.choice([self._other.terminate, lambda: self._other.kill(self._other.everyone())])()

    def _kill_broker(self) -> None:
        broker = self._random.randrange(len(self._brokers.pids))
        self._brokers.kill_broker(broker)
        try:
            time.sleep(self._random.uniform(1, 8))
        finally:
            self._brokers.start_broker(broker)
