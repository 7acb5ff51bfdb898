"""Threads that process slices. A terminated run stops within seconds and leaves the offsets unchanged.

Spark jobs run in threads; the thread that Dagster interrupts only waits. An interruption cancels the run's jobs, which
have a common tag, and aborts the transactions that their killed workers left open.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, TypeVar

from kpipe_platform.errors import EngineUnavailableError, KpipeError
from kpipe_platform.kafka.client.calls import run_in_thread
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.kafka.transactions.slice import abort_lingering
from kpipe_platform.spark.engine.cancel import cancel_jobs, tag_jobs

T = TypeVar("T")
logger = logging.getLogger(__name__)

WAKE_UP_S = 0.2
"""Maximum sleep of the waiting thread, seconds. An interruption is raised in that thread."""

# Spark kills a Python worker 2 s after its task is canceled; a broker call may take a few seconds more.
_GRACE_S = 8.0
_ABORTS_AT_ONCE = 8
# An abort takes half a second. If the brokers are unreachable, aborts that have not started after 3 s are skipped, so
# that the run still ends within 15 s.
_ABORT_S = 4.0
_ABORTS_BEGIN_S = 3.0
# How long to wait after that for threads to report what they still committed, within the same 15 s.
_ACCOUNT_S = 3.0
_END_S = 15.0


class SliceWorkers:
    """Threads that process slices. Use it as a context manager: an exception inside the block stops all work.

    Args:
        session: Returns the Spark session. Only this run's jobs are canceled, because an adopted session has others.
        settings: Connection for the transactions.
        threads: Maximum number of threads; further work waits. Default 1.
    """

    def __init__(self, session: Callable[[], object], settings: ConnectionSettings, threads: int = 1) -> None:
        self._session = session
        # Aborts have little time; see `_ABORT_S`.
        self._settings = replace(settings, request_timeout_s=min(settings.request_timeout_s, _ABORT_S))
        self._threads = threads
        self._tag = f"kpipe-{uuid.uuid4().hex}"
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[int, set[str]] = {}
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0
        self._pending: set[Future[Any]] = set()

    # Work

    def __enter__(self) -> SliceWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # Work must not continue after any interruption of the run.
        if kind is not None and self._pending:
            self._stop(set(self._pending))
        started, self._started = self._started, 0
        for _ in range(started):
            self._works.put(None)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread, with a copy of the caller's context variables, which Dagster needs in the thread."""
        future: Future[T] = Future()
        context = copy_context()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

        def fulfill() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(context.run(work))
            except BaseException as error:  # noqa: BLE001  # raised again where the result is taken
                future.set_exception(error)

        self._works.put(fulfill)
        if self._started < self._threads:
            self._started += 1
            # Use daemon threads: unfinished work of a terminated run, such as a call to unreachable brokers, must not
            # keep the process alive.
            threading.Thread(target=self._loop, name=f"kpipe-slice_{self._started}", daemon=True).start()
        return future

    def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread and wait for its result."""
        with self:
            future = self.submit(work)
            while not wait([future], timeout=WAKE_UP_S).done:
                pass
            return future.result()

    def _loop(self) -> None:
        while (work := self._works.get()) is not None:
            work()

    # Interruption

    @property
    def is_stopped(self) -> bool:
        """Whether the run was terminated."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raise if the run was terminated.

        Raises:
            EngineUnavailableError: The run was terminated.
        """
        if self._stopped.is_set():
            msg = "the run was terminated"
            raise EngineUnavailableError(msg, fix="run again; nothing of the slice was committed")

    def sleep(self, seconds: float) -> None:
        """Wait. Return early if the run is terminated."""
        self._stopped.wait(seconds)

    def tag_jobs(self) -> None:
        """Tag the Spark jobs that this thread starts, so that a termination cancels them.

        Raises:
            KpipeError: The Spark session is unavailable.
        """
        tag_jobs(self._session(), self._tag)

    def after_work(self, close: Callable[[], None]) -> None:
        """Call `close` when no work is pending: now, or after a terminated run's remaining work ends."""
        left = set(self._pending)
        if not left:
            close()
            return

        def wait_and_close() -> None:
            wait(left)
            close()

        run_in_thread(wait_and_close)

    @contextmanager
    def at_work(self, slice_: Slice, lanes: int = 1) -> Iterator[None]:
        """Register the slice that this thread processes, so that a termination cancels its jobs and transactions.

        Args:
            slice_: The slice.
            lanes: Maximum number of lanes, each with its own transaction. Default 1.

        Raises:
            KpipeError: The run was terminated, or the Spark session is unavailable.
        """
        self.check()
        # An empty slice starts no job and must not start Spark.
        if not slice_.ranges or not slice_.is_empty:
            self.tag_jobs()
        written = [replace(slice_, lane=lane) for lane in range(lanes)]
        ids = {each.transactional_id for each in written} | {each.probe_id for each in written}
        with self._lock:
            self._open[threading.get_ident()] = ids
        try:
            yield
        finally:
            with self._lock:
                # After a termination, keep the ids: the terminating thread aborts their transactions.
                if not self._stopped.is_set():
                    self._open.pop(threading.get_ident(), None)

    def _stop(self, pending: set[Future[Any]]) -> None:
        end_s = time.monotonic() + _END_S
        self._stopped.set()
        for future in pending:
            future.cancel()
        logger.warning("the run was terminated; canceling its Spark jobs")
        try:
            cancel_jobs(self._session(), self._tag)
        except Exception as error:  # noqa: BLE001  # an engine that is gone has no jobs left
            logger.warning("could not cancel Spark jobs: %s", error)
        wait(pending, timeout=_GRACE_S)
        with self._lock:
            left = sorted(set().union(*self._open.values()))
        last_begin_s = time.monotonic() + _ABORTS_BEGIN_S
        # Abort in parallel, because each abort takes about half a second.
        with ThreadPoolExecutor(max_workers=_ABORTS_AT_ONCE) as pool:
            list(pool.map(lambda transactional_id: self._abort(transactional_id, last_begin_s), left))
        wait(pending, timeout=max(min(_ACCOUNT_S, end_s - time.monotonic()), 0))

    def _abort(self, transactional_id: str, last_begin_s: float) -> None:
        if time.monotonic() > last_begin_s:
            logger.warning(
                "did not abort the transaction of %s; the next run or the brokers' timeout aborts it", transactional_id
            )
            return
        try:
            abort_lingering(self._settings, transactional_id)
        except KpipeError as error:
            logger.warning(
                "did not abort the transaction of %s; the next run or the brokers' timeout aborts it: %s",
                transactional_id,
                error,
            )
