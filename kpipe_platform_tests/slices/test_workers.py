"""Work in threads: what stops it, and what does not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from kpipe_platform.errors import EngineUnavailableError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.slices.run import workers as module
from kpipe_platform.slices.run.workers import SliceWorkers


class Session:
    """Notes the tags of each thread, and what is canceled."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.canceled: list[str] = []


class ConnectSession(Session):
    """A session of a Spark Connect server."""

    def addTag(self, tag: str) -> None:
        self.tags[threading.current_thread().name] = tag

    def interruptTag(self, tag: str) -> list[str]:
        self.canceled.append(tag)
        return []


class ClassicSession(Session):
    """A session in this process."""

    @property
    def sparkContext(self) -> ClassicSession:
        return self

    def addJobTag(self, tag: str) -> None:
        self.tags[threading.current_thread().name] = tag

    def cancelJobsWithTag(self, tag: str) -> None:
        self.canceled.append(tag)


def plan(start: int, end: int, partition: int = 0) -> Slice:
    planned = PlannedRange(OffsetRange("orders", partition, start, end), "id", 0, end, start)
    return Slice("g", "run", "slice", (planned,))


@pytest.fixture(params=[ClassicSession, ConnectSession])
def session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Session:
    # How PySpark tells the two apart.
    if request.param is ConnectSession:
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    else:
        monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    session: Session = request.param()
    return session


@pytest.fixture
def workers(session: Session) -> SliceWorkers:
    return SliceWorkers(lambda: session, ConnectionSettings(bootstrap_servers="127.0.0.1:9"))


def test_work_that_is_done_cancels_nothing(workers: SliceWorkers, session: Session) -> None:
    assert workers.run(lambda: 3) == 3
    with workers:
        assert [f.result(30) for f in [workers.submit(lambda: 1), workers.submit(lambda: 2)]] == [1, 2]
    workers.check()
    assert session.canceled == []


def test_an_error_of_the_work_is_its_own(workers: SliceWorkers, session: Session) -> None:
    def work() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        workers.run(work)
    assert session.canceled == []


def test_an_interruption_cancels_the_jobs_and_ends_the_work(workers: SliceWorkers, session: Session) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        workers.tag_jobs()
        begun.set()
        deadline = time.monotonic() + 30
        while not session.canceled and time.monotonic() < deadline:
            time.sleep(0.01)
        ended.set()

    interrupt(workers, work, begun)
    assert ended.wait(30)
    (tag,) = session.canceled
    assert set(session.tags.values()) == {tag}
    with pytest.raises(EngineUnavailableError, match="terminated"):
        workers.check()


def interrupt(workers: SliceWorkers, work: Callable[[], None], begun: threading.Event) -> float:
    """Interrupt the thread that waits for some work, once it has begun; the seconds that the end took."""
    at_s = 0.0

    def wait() -> None:
        nonlocal at_s
        with workers:
            workers.submit(work)
            assert begun.wait(30)
            at_s = time.monotonic()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait()
    return time.monotonic() - at_s


def terminate(workers: SliceWorkers, work: Callable[[], None], begun: threading.Event | None = None) -> float:
    """Interrupt work that goes on, once it has begun; the seconds that it took."""
    began = begun or threading.Event()

    def begin() -> None:
        if begun is None:
            began.set()
        work()

    return interrupt(workers, begin, began)


def test_every_thread_tags_its_jobs_and_each_run_has_a_tag_of_its_own(session: Session) -> None:
    settings = ConnectionSettings(bootstrap_servers="127.0.0.1:9")
    runs = [SliceWorkers(lambda: session, settings, 2) for _ in range(2)]
    tags = []
    for run in runs:
        together = threading.Barrier(2)

        def work(number: int, run: SliceWorkers = run, together: threading.Barrier = together) -> None:
            with run.at_work(plan(0, 5, number)):
                together.wait(30)

        with run:
            for future in [run.submit(partial(work, number)) for number in range(2)]:
                future.result(30)
        assert len(session.tags) == 2
        tags.append(set(session.tags.values()))
        session.tags.clear()
    assert [len(each) for each in tags] == [1, 1]
    assert tags[0] != tags[1]


def test_an_empty_slice_asks_for_no_session() -> None:
    def session() -> object:
        raise AssertionError

    run = SliceWorkers(session, ConnectionSettings(bootstrap_servers="127.0.0.1:9"))
    with run.at_work(plan(5, 5)):
        pass


def test_a_wait_ends_when_the_run_is_terminated(workers: SliceWorkers) -> None:
    ended = threading.Event()

    def work() -> None:
        workers.sleep(60)
        ended.set()

    assert terminate(workers, work) < 5
    assert ended.is_set()


def test_clients_are_closed_when_the_work_that_uses_them_is_done(
    workers: SliceWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.1)
    answer, closed = threading.Event(), threading.Event()
    terminate(workers, lambda: answer.wait(60) and None)
    workers.after_work(closed.set)
    assert not closed.wait(0.2)
    answer.set()
    assert closed.wait(30)


def test_clients_are_closed_at_once_where_all_work_is_done(workers: SliceWorkers) -> None:
    closed = threading.Event()
    workers.run(lambda: None)
    workers.after_work(closed.set)
    assert closed.is_set()


def test_brokers_that_are_away_do_not_hold_a_terminated_run(
    workers: SliceWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the transactions of many lanes to abort, and a call to the brokers that nobody answers."""
    # The rest of the promised 15 s is the grace that this test cuts short.
    monkeypatch.setattr(module, "_GRACE_S", 0.5)
    monkeypatch.setattr(module, "_END_S", 15 - 7.5)
    begun, answer = threading.Event(), threading.Event()

    def work() -> None:
        with workers.at_work(plan(0, 5), lanes=16):
            begun.set()
            answer.wait(60)

    took_s = terminate(workers, work, begun)
    answer.set()
    assert took_s < 15 - 7.5 + 0.5


_HANGS = """
import threading
from kpipe_platform.slices.run import workers
from kpipe_platform.kafka.client.settings import ConnectionSettings
workers._GRACE_S = 0.1
session = type("Session", (), {"sparkContext": None})()
run = workers.SliceWorkers(lambda: session, ConnectionSettings(bootstrap_servers="127.0.0.1:9"))
try:
    with run:
        run.submit(threading.Event().wait)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print("terminated", flush=True)
"""


def test_a_process_does_not_wait_for_work_that_hangs() -> None:
    answer = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60)
    assert answer.stdout == "terminated\n"
