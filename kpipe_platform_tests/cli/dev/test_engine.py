"""When `kpipe dev` starts an engine, and when it does without."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from kpipe_platform.cli.dev import engine as dev_engine
from kpipe_platform.cli.dev.engine import warm_engine
from kpipe_platform.errors import EngineUnavailableError, KpipeError


def lines_without_an_engine(folder: Path, environment: Mapping[str, str], *, wanted: bool = True) -> list[str]:
    said: list[str] = []
    with warm_engine(folder, environment, wanted=wanted, say=said.append, progress=said.append) as engine:
        assert engine is None
    assert list(folder.iterdir()) == []
    return said


@pytest.mark.parametrize("chosen", ["KPIPE_SPARK_REMOTE", "KPIPE_SPARK_MASTER"])
def test_an_engine_that_somebody_chose_is_left_to_them(tmp_path: Path, chosen: str) -> None:
    assert lines_without_an_engine(tmp_path, {chosen: "somewhere"}) == []


def test_none_is_started_where_none_is_wanted(tmp_path: Path) -> None:
    assert lines_without_an_engine(tmp_path, {}, wanted=False) == []


def test_without_the_clients_packages_runs_start_their_own_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev_engine, "has_client", lambda: False)
    (line,) = lines_without_an_engine(tmp_path, {})
    assert "kpipe-platform[connect]" in line


class StartingServer:
    """Stands for a server that starts until it is stopped.

    Args:
        error: Raised by the start when it ends.
    """

    def __init__(self, error: KpipeError) -> None:
        self.starting, self.stopped = threading.Event(), threading.Event()
        self._error = error

    def start(self) -> None:
        self.starting.set()
        assert self.stopped.wait(10)
        raise self._error

    def stop(self) -> None:
        assert self.starting.wait(10)
        self.stopped.set()


def test_an_engine_starts_in_the_background_and_is_stopped_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = EngineUnavailableError("no", fix="none")
    server = StartingServer(error)
    monkeypatch.setattr(dev_engine, "ConnectServer", lambda *_args, **_more: server)
    with warm_engine(tmp_path, {}, wanted=True, say=print, progress=print) as engine:
        assert engine is not None
        assert engine.environment == {dev_engine.REMOTE: engine.remote}
        engine.check()
    assert server.stopped.is_set()
    for raises in (engine.check, engine.wait):
        with pytest.raises(EngineUnavailableError):
            raises()
