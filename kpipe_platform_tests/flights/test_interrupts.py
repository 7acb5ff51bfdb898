from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.flights import __main__ as main
from examples.flights.interrupts import STOPPING_SIGNALS, Interrupted, unwind_on_signals
from kpipe_platform.demo import data


@pytest.fixture(autouse=True)
def _handlers_of_before() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in STOPPING_SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("signum", STOPPING_SIGNALS, ids=lambda each: each.name)
def test_the_first_signal_unwinds_and_later_ones_do_not_break_off_the_stopping(signum: signal.Signals) -> None:
    unwind_on_signals()
    with pytest.raises(Interrupted):
        signal.raise_signal(signum)
    for each in STOPPING_SIGNALS:
        signal.raise_signal(each)


def test_an_interrupted_command_says_so_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "flights", lambda: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = CliRunner().invoke(main.app, ["seed"])
    assert answer.exit_code == 1
    assert answer.stderr.splitlines()[-1].startswith("interrupted: all services are stopped")
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []
