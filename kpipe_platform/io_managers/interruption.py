"""Work on slices that a terminated run can leave within seconds, with nothing of it visible and offsets unmoved.

Spark jobs run in threads; the thread that Dagster interrupts only waits. On an interruption the session's jobs are
cancelled, and the transactions that their killed workers left open are aborted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import TypeVar

from kpipe_platform.errors import EngineUnavailableError, KpipeError
from kpipe_platform.kafka.settings import ConnectionSettings
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.kafka.transactions import abort_lingering
from kpipe_platform.spark.cancel import cancel_jobs

T = TypeVar("T")
logger = logging.getLogger(__name__)

# How long the waiting thread sleeps between looks; an interruption is raised there.
_LOOK_S = 0.2
# Spark kills a Python worker 2 s after its task is cancelled; a broker call may take a few seconds more.
_GRACE_S = 8.0
_ABORTS_AT_ONCE = 8
# How long the work may take after that to say what it has committed all the same.
_ACCOUNT_S = 3.0


class Interruptible:
    """Runs work on slices in threads.

    Args:
        session: Gives the Spark session, whose jobs are cancelled.
        settings: Connection of the transactions.
    """

    def __init__(self, session: Callable[[], object], settings: ConnectionSettings) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        """Called in the waiting thread, several times a second; it must be quick."""
        self._session = session
        self._settings = settings
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[int, set[str]] = {}

    @property
    def is_stopped(self) -> bool:
        """Whether the run was terminated."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Stop here when the run was terminated.

        Raises:
            EngineUnavailableError: It was.
        """
        if self._stopped.is_set():
            msg = "the run was terminated"
            raise EngineUnavailableError(msg, fix="nothing of the slice was committed; run again")

    @contextmanager
    def at_work(self, slice_: Slice, lanes: int = 1) -> Iterator[None]:
        """Work on a slice in this thread.

        Args:
            slice_: The slice.
            lanes: Lanes that it may be written in, each in a transaction of its own.
        """
        self.check()
        written = [replace(slice_, lane=lane) for lane in range(lanes)]
        ids = {each.transactional_id for each in written} | {each.probe_id for each in written}
        with self._lock:
            self._open[threading.get_ident()] = ids
        try:
            yield
        finally:
            with self._lock:
                # What is open when the run is terminated is aborted by the thread that does that.
                if not self._stopped.is_set():
                    self._open.pop(threading.get_ident(), None)

    def run(self, work: Callable[[], T]) -> T:
        """Do one piece of work."""
        for result in self.run_each([work], 1):
            return result.result()
        msg = "no result"
        raise RuntimeError(msg)

    def run_each(self, works: list[Callable[[], T]], at_once: int) -> Generator[Future[T]]:
        """Do several pieces of work, so many at a time, each in a thread that has the caller's context variables.

        Yields:
            Each when it is done.
        """
        pool = ThreadPoolExecutor(max_workers=max(at_once, 1), thread_name_prefix="kpipe-slice")
        # By them Dagster knows in a thread, too, which asset it executes.
        pending = {pool.submit(copy_context().run, work) for work in works}
        try:
            while pending:
                done, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                self.meanwhile()
                yield from done
        except BaseException:
            # Whatever interrupts a run, the work must not go on without it. (Closing the generator when all is done
            # comes here too.)
            if pending:
                self._stop(pending)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _stop(self, pending: set[Future[T]]) -> None:
        self._stopped.set()
        for future in pending:
            future.cancel()
        logger.warning("the run is terminated: cancelling its Spark jobs")
        try:
            cancel_jobs(self._session())
        except Exception as error:  # noqa: BLE001  # an engine that is gone has no jobs left
            logger.warning("could not cancel Spark jobs: %s", error)
        wait(pending, timeout=_GRACE_S)
        with self._lock:
            left = sorted(set().union(*self._open.values()))
        # At the same time, because each takes about half a second.
        with ThreadPoolExecutor(max_workers=_ABORTS_AT_ONCE) as pool:
            list(pool.map(self._abort, left))
        wait(pending, timeout=_ACCOUNT_S)

    def _abort(self, transactional_id: str) -> None:
        try:
            abort_lingering(self._settings, transactional_id)
        except KpipeError as error:
            logger.warning("left to the brokers' timeout, or to the next run: %s", error)
