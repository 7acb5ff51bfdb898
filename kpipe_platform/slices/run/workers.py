"""Threads that process slices, and that a terminated run can leave within seconds: offsets stay unmoved.

Spark jobs run in threads; the thread that Dagster interrupts only waits. On an interruption the run's jobs, which it
knows by a tag, are canceled, and the transactions that their killed workers left open are aborted.
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
from kpipe_platform.kafka.client.calls import beside
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.kafka.transactions.slice import abort_lingering
from kpipe_platform.spark.engine.cancel import cancel_jobs, tag_jobs

T = TypeVar("T")
logger = logging.getLogger(__name__)

WAKE_UP_S = 0.2
"""How long the waiting thread sleeps at most; an interruption is raised there."""

# Spark kills a Python worker 2 s after its task is canceled; a broker call may take a few seconds more.
_GRACE_S = 8.0
_ABORTS_AT_ONCE = 8
# An abort takes half a second. Where the brokers are away, those that wait for their turn after 3 s are left out, so
# that a run ends within 15 s all the same.
_ABORT_S = 4.0
_ABORTS_BEGIN_S = 3.0
# How long the work may take after that to say what it has committed all the same, within the same 15 s.
_ACCOUNT_S = 3.0
_END_S = 15.0


class SliceWorkers:
    """Threads for the work on slices. Used as a context manager: an exception inside stops all work.

    Args:
        session: Gives the Spark session. Of its jobs those of this run are canceled: an adopted session has others.
        settings: Connection of the transactions.
        threads: Works at the same time, at most; further ones wait.
    """

    def __init__(self, session: Callable[[], object], settings: ConnectionSettings, threads: int = 1) -> None:
        self._session = session
        # Aborts are short of time, see `_ABORT_S`.
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
        # Whatever interrupts a run, the work must not go on without it.
        if kind is not None and self._pending:
            self._stop(set(self._pending))
        started, self._started = self._started, 0
        for _ in range(started):
            self._works.put(None)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Let a thread do some work. By the caller's context variables Dagster knows there, too, what it executes."""
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
            # Daemon threads: what a terminated run could not wait for, such as a call to brokers that are away, must
            # not hold its process.
            threading.Thread(target=self._loop, name=f"kpipe-slice_{self._started}", daemon=True).start()
        return future

    def run(self, work: Callable[[], T]) -> T:
        """Do one piece of work in a thread, and wait for it."""
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
        """Stop here when the run was terminated.

        Raises:
            EngineUnavailableError: It was.
        """
        if self._stopped.is_set():
            msg = "the run was terminated"
            raise EngineUnavailableError(msg, fix="nothing of the slice was committed; run again")

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than until the run is terminated."""
        self._stopped.wait(seconds)

    def tag_jobs(self) -> None:
        """Make the Spark jobs that this thread starts known as the run's.

        Raises:
            KpipeError: There is no session.
        """
        tag_jobs(self._session(), self._tag)

    def after_work(self, close: Callable[[], None]) -> None:
        """Close what the work uses: now, or once the work is done that a terminated run could not wait for."""
        left = set(self._pending)
        if not left:
            close()
            return

        def wait_and_close() -> None:
            wait(left)
            close()

        beside(wait_and_close)

    @contextmanager
    def at_work(self, slice_: Slice, lanes: int = 1) -> Iterator[None]:
        """Work on a slice in this thread.

        Args:
            slice_: The slice.
            lanes: Lanes that it may be written in, each in a transaction of its own.
        """
        self.check()
        # An empty slice starts no job, and is to start no Spark.
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
                # What is open when the run is terminated is aborted by the thread that does that.
                if not self._stopped.is_set():
                    self._open.pop(threading.get_ident(), None)

    def _stop(self, pending: set[Future[Any]]) -> None:
        end_s = time.monotonic() + _END_S
        self._stopped.set()
        for future in pending:
            future.cancel()
        logger.warning("the run is terminated: canceling its Spark jobs")
        try:
            cancel_jobs(self._session(), self._tag)
        except Exception as error:  # noqa: BLE001  # an engine that is gone has no jobs left
            logger.warning("could not cancel Spark jobs: %s", error)
        wait(pending, timeout=_GRACE_S)
        with self._lock:
            left = sorted(set().union(*self._open.values()))
        last_begin_s = time.monotonic() + _ABORTS_BEGIN_S
        # At the same time, because each takes about half a second.
        with ThreadPoolExecutor(max_workers=_ABORTS_AT_ONCE) as pool:
            list(pool.map(lambda transactional_id: self._abort(transactional_id, last_begin_s), left))
        wait(pending, timeout=max(min(_ACCOUNT_S, end_s - time.monotonic()), 0))

    def _abort(self, transactional_id: str, last_begin_s: float) -> None:
        if time.monotonic() > last_begin_s:
            logger.warning("transactional id %s is left to the brokers' timeout, or to the next run", transactional_id)
            return
        try:
            abort_lingering(self._settings, transactional_id)
        except KpipeError as error:
            logger.warning("left to the brokers' timeout, or to the next run: %s", error)
