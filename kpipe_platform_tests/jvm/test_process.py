import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.jvm.identity import PidFile, ProcessIdentity
from kpipe_platform.jvm.logs import tail
from kpipe_platform.jvm.ports import free_port, is_free
from kpipe_platform.jvm.process import ManagedProcess

LOOP = "import time\nwhile True: time.sleep(0.05)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n" + LOOP


def wait_until(condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)


def python(tmp_path: Path, code: str, **options: object) -> ManagedProcess:
    return ManagedProcess(
        [sys.executable, "-c", code],
        log_path=tmp_path / "log",
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("detached", [False, True])
def test_start_and_stop(tmp_path: Path, detached: bool) -> None:
    pid_file = tmp_path / "pid"
    process = python(tmp_path, "print('hello', flush=True)\n" + LOOP, detached=detached, pid_file=pid_file)
    assert process.pid is None
    process.start()
    wait_until(lambda: process.log_tail() == "hello")
    pid = process.pid
    assert pid is not None
    assert os.getpgid(pid) != os.getpgid(0)
    assert PidFile(pid_file).running() == ProcessIdentity.of(pid)
    with pytest.raises(RuntimeError, match="already running"):
        process.start()
    process.stop()
    assert not process.is_running()
    assert process.pid is None
    assert ProcessIdentity.of(pid) is None
    assert not pid_file.exists()
    process.stop()


@pytest.mark.parametrize("detached", [False, True])
def test_a_child_deaf_to_sigterm_is_killed_after_the_deadline(tmp_path: Path, detached: bool) -> None:
    process = python(tmp_path, STUBBORN, detached=detached)
    process.start()
    wait_until(lambda: "deaf" in process.log_tail())
    process.stop(deadline_s=0.2)
    assert not process.is_running()


def test_exit_code_and_log_of_the_last_start_only(tmp_path: Path) -> None:
    process = python(tmp_path, "import os; print(os.getpid()); raise SystemExit(3)")
    process.start()
    assert process.wait(20)
    assert process.returncode == 3
    first = process.log_tail()
    process.start()
    assert process.wait(20)
    assert process.log_tail() not in ("", first)
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    process.stop()


def test_kill_shows_the_signal_in_the_exit_code(tmp_path: Path) -> None:
    process = python(tmp_path, LOOP)
    process.start()
    process.kill()
    assert process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("detached", [False, True])
def test_a_program_that_does_not_exist(tmp_path: Path, detached: bool) -> None:
    process = ManagedProcess(["/no/such/program"], log_path=tmp_path / "log", detached=detached)
    with pytest.raises(EnvironmentSetupError, match="/no/such/program"):
        process.start()
    assert not process.is_running()


def test_what_the_child_started_ends_with_it(tmp_path: Path) -> None:
    grandchild = tmp_path / "grandchild"
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {LOOP!r}])\n"
        f"open({str(grandchild)!r}, 'w').write(str(child.pid) + '\\n')\n" + LOOP
    )
    process = python(tmp_path, code)
    process.start()
    wait_until(lambda: grandchild.exists() and grandchild.read_text().endswith("\n"))
    identity = ProcessIdentity.of(int(grandchild.read_text()))
    assert identity is not None
    process.kill()
    assert identity.wait(10)


PARENT = """
import sys, time
from pathlib import Path
from kpipe_platform.jvm.ports import free_port, is_free
from kpipe_platform.jvm.process import ManagedProcess
folder = Path(sys.argv[1])
data = folder / "data"
data.mkdir()
process = ManagedProcess(
    [sys.executable, "-c", sys.argv[2]],
    log_path=folder / "log",
    detached=sys.argv[3] == "detached",
    pid_file=folder / "pid",
    orphan_grace_s=0.2,
    remove_if_orphaned=data,
)
process.start()
print("started", flush=True)
time.sleep(600)
"""


def start_parent(tmp_path: Path, child: str, mode: str) -> subprocess.Popen[bytes]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path, child, mode], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"started\n"
    return parent


@pytest.mark.parametrize("child", [LOOP, STUBBORN], ids=["obedient", "stubborn"])
def test_the_child_dies_when_its_parent_is_killed(tmp_path: Path, child: str) -> None:
    with start_parent(tmp_path, child, "attached") as parent:
        identity = PidFile(tmp_path / "pid").running()
        assert identity is not None
        parent.kill()
    assert identity.wait(20)
    wait_until(lambda: not (tmp_path / "data").exists())


def test_a_detached_child_outlives_its_parent_and_is_found_again(tmp_path: Path) -> None:
    with start_parent(tmp_path, LOOP, "detached") as parent:
        parent.kill()
    identity = PidFile(tmp_path / "pid").running()
    assert identity is not None
    assert identity.stop(10)
    assert not identity.is_running()
    assert not identity.stop(10)


def test_a_forked_copy_of_the_parent_does_not_keep_the_child_alive(tmp_path: Path) -> None:
    forking = "import os\ncopy = os.fork()\nif copy == 0: time.sleep(600)\nprint(copy, flush=True)\n"
    code = PARENT.replace('print("started"', forking + 'print("started"')
    parent = subprocess.Popen([sys.executable, "-c", code, tmp_path, LOOP, "attached"], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        copy = ProcessIdentity.of(int(parent.stdout.readline()))
        assert copy is not None
        try:
            assert parent.stdout.readline() == b"started\n"
            identity = PidFile(tmp_path / "pid").running()
            assert identity is not None
            parent.kill()
            assert identity.wait(60)
            assert copy.is_running()
        finally:
            copy.send(signal.SIGKILL)


MANY_THREADS = """
import socket, sys, threading, time
memory = bytearray(100_000_000)
memory[::4096] = b"x" * len(memory[::4096])
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
for _ in range(50):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("up", flush=True)
time.sleep(600)
"""


def test_a_killed_child_is_gone_only_when_its_port_is_free(tmp_path: Path) -> None:
    # A zombie's threads may still hold what it had open.
    port = free_port()
    command = [sys.executable, "-c", MANY_THREADS, str(port)]
    process = ManagedProcess(command, log_path=tmp_path / "log", detached=True)
    process.start()
    wait_until(lambda: process.log_tail() == "up")
    process.kill()
    assert is_free(port)


def test_a_recycled_pid_is_another_process_and_is_not_signaled(tmp_path: Path) -> None:
    process = python(tmp_path, LOOP)
    process.start()
    pid = process.pid
    assert pid is not None
    earlier = ProcessIdentity(pid, "another boot:1")
    assert not earlier.is_running()
    assert not earlier.stop(1)
    assert process.is_running()
    file = PidFile(tmp_path / "other")
    file.write(earlier)
    assert file.read() == earlier
    assert file.running() is None
    process.stop()


@pytest.mark.parametrize("content", ["", "12", "{}", '{"pid": "x", "started": "y"}'])
def test_a_damaged_pid_file_is_no_pid_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    assert PidFile(tmp_path / "pid").read() is None


def test_tail(tmp_path: Path) -> None:
    assert tail(tmp_path / "absent", 3) == ""
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert tail(path, 2) == "line 99998\nline 99999"
