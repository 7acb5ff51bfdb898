"""Work in threads: what stops it, and what does not."""

from __future__ import annotations

import threading
import time

import pytest

from kpipe_platform.errors import EngineUnavailableError
from kpipe_platform.io_managers.interruption import Interruptible
from kpipe_platform.kafka.settings import ConnectionSettings


class ConnectSession:
    """A session of a Spark Connect server; counts what is cancelled."""

    cancelled = 0

    def interruptAll(self) -> list[str]:
        self.cancelled += 1
        return []


class ClassicSession:
    """A session in this process; counts what is cancelled."""

    cancelled = 0

    @property
    def sparkContext(self) -> ClassicSession:
        return self

    def cancelAllJobs(self) -> None:
        self.cancelled += 1


Session = ClassicSession | ConnectSession


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
def interruptible(session: Session) -> Interruptible:
    return Interruptible(lambda: session, ConnectionSettings(bootstrap_servers="127.0.0.1:9"))


def test_work_that_is_done_cancels_nothing(interruptible: Interruptible, session: Session) -> None:
    assert interruptible.run(lambda: 3) == 3
    assert sorted(f.result() for f in interruptible.run_each([lambda: 1, lambda: 2], 2)) == [1, 2]
    interruptible.check()
    assert session.cancelled == 0


def test_an_error_of_the_work_is_its_own(interruptible: Interruptible, session: Session) -> None:
    def work() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        interruptible.run(work)
    assert session.cancelled == 0


def test_an_interruption_cancels_the_jobs_and_ends_the_work(interruptible: Interruptible, session: Session) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        deadline = time.monotonic() + 30
        while not session.cancelled and time.monotonic() < deadline:
            time.sleep(0.01)
        ended.set()

    def quick() -> None:
        begun.wait(30)

    results = interruptible.run_each([work, quick], 2)
    next(results)
    with pytest.raises(KeyboardInterrupt):
        results.throw(KeyboardInterrupt())
    assert ended.wait(30)
    assert session.cancelled == 1
    with pytest.raises(EngineUnavailableError, match="terminated"):
        interruptible.check()
