from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from examples.flights.workspace import quiet_stderr, working_folder
from kpipe_platform.errors import EnvironmentSetupError


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_temporary_folder_is_gone_at_the_end(parent: Path) -> None:
    with working_folder(None) as folder:
        assert folder.parent == parent
        (folder / "file").write_text("x")
    assert list(parent.iterdir()) == []


def test_what_killed_runs_left_is_deleted_and_what_lives_is_not(parent: Path) -> None:
    code = (
        "import os, tempfile\n"
        "from examples.flights.workspace import working_folder\n"
        "with working_folder(None) as folder:\n"
        "    print(folder, flush=True)\n"
        "    os._exit(9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(parent)}
    ).stdout.strip()
    assert Path(killed).exists()
    with working_folder(None) as first, working_folder(None) as second:
        assert first.exists()
        assert second.exists()
        assert not Path(killed).exists()


def test_a_kept_folder_stays_and_has_one_user(tmp_path: Path) -> None:
    kept = tmp_path / "deep" / "run"
    with working_folder(kept) as folder:
        (folder / "file").write_text("x")
        with pytest.raises(EnvironmentSetupError, match="another run uses the folder"), working_folder(kept):
            pass
    assert (kept / "file").exists()


def test_what_children_write_to_stderr_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    with quiet_stderr(log) as console:
        subprocess.run(["sh", "-c", "echo noise >&2"], check=True)
        console.print("progress")
    os.write(2, b"after\n")
    assert log.read_text() == "noise\n"
    assert capfd.readouterr().err == "progress\nafter\n"
