"""`kpipe dev`: an embedded broker, the demo's topics and the Dagster UI, started and stopped together."""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from filelock import FileLock, Timeout

from kpipe_platform.cli.output import progress_lines
from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.jvm.ports import LOOPBACK, is_free
from kpipe_platform.jvm.process import ManagedProcess
from kpipe_platform.testing.broker import EmbeddedBroker

__all__ = ["dagster_yaml", "dev", "service_environment"]

DEFINITIONS = "kpipe_platform.definitions"

_POLL_S = 0.2
# Dagster ends its services one after the other, and gives each of them this long by itself.
_DAGSTER_STOP_DEADLINE_S = 25.0
_KILL_DEADLINE_S = 5.0
_STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
# A child that must not be hit by this terminal's Ctrl-C is started with SIGINT ignored, and would pass that on to
# what it starts: Dagster would not see the SIGINT that it is ended with either.
_RUN_DAGSTER = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("dagster", run_name="__main__", alter_sys=True)
"""
_SUPERSEDED = "ignore:Function `dev_command` is superseded"


def dev(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Dagster UI.")] = 3000,
    brokers: Annotated[int, typer.Option(min=1, max=3, help="Kafka brokers to start.")] = 1,
    data_dir: Annotated[Path, typer.Option(help="Where topics, tables and Dagster's history are kept.")] = Path(
        ".kpipe/dev"
    ),
    seed: Annotated[bool, typer.Option(help="Fill the topics of the flights platform first.")] = True,
) -> None:
    """Start Kafka and the Dagster UI with the flights platform; Ctrl-C stops all of it.

    Data is kept: the next start goes on where this one ended. Delete the data folder to start afresh.
    """
    if not is_free(port):
        raise EnvironmentSetupError(
            f"Port {port} is in use, so the Dagster UI cannot be there.",
            fix=f"stop what listens on it, or take another: make dev PORT={port + 1} "
            f"(that is kpipe dev --port {port + 1})",
            port=port,
        )
    folder = data_dir.absolute()
    try:
        with _stopping_signals_interrupt(), _only_user_of(folder):
            _serve(port, brokers, folder, seed=seed)
    except KeyboardInterrupt:
        typer.echo("Stopped.")


def service_environment(environment: Mapping[str, str], *, bootstrap_servers: str, folder: Path) -> dict[str, str]:
    """The environment of Dagster and of the seeding, from this process's own.

    Args:
        environment: What this process was started with. What it says of Dagster's home and the tables wins.
        bootstrap_servers: Address of the broker, which always wins: these services are for it.
        folder: The data folder.
    """
    defaults = {"DAGSTER_HOME": str(folder / "dagster"), "KPIPE_DATA_DIR": str(folder / "tables")}
    return {
        **defaults,
        **environment,
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
        "PYTHONUNBUFFERED": "1",
    }


def dagster_yaml(cpus: int) -> str:
    """Settings of the Dagster instance that `kpipe dev` makes for itself.

    Args:
        cpus: Processors of this machine. Each run may start a Spark session of a GB, so there are no more
            runs than processors, and no more than four.
    """
    runs = max(1, min(4, cpus))
    quiet = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"
    return f"{quiet}concurrency:\n  runs:\n    max_concurrent_runs: {runs}\n"


def _serve(port: int, brokers: int, folder: Path, *, seed: bool) -> None:
    typer.echo(f"Starting Kafka ({brokers} broker{'s' if brokers > 1 else ''}), data in {folder}")
    with progress_lines() as show:
        broker = EmbeddedBroker(brokers, folder / "kafka", keep_data=True, progress=show)
        broker.start()
    try:
        environment = service_environment(os.environ, bootstrap_servers=broker.bootstrap_servers, folder=folder)
        if seed:
            typer.echo("Filling the topics of the flights platform")
            _seed(environment)
        _serve_dagster(port, broker.bootstrap_servers, folder, environment)
    finally:
        broker.stop()


def _seed(environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "kpipe_platform.demo", "seed"]
    # It writes to this terminal itself, so that it can draw a progress bar there.
    with subprocess.Popen(command, env=environment, preexec_fn=_ending_with_parent()) as seeding:
        try:
            code = seeding.wait()
        except BaseException:
            seeding.terminate()
            try:
                seeding.wait(_KILL_DEADLINE_S)
            except subprocess.TimeoutExpired:
                seeding.kill()
            raise
    if code != 0:
        msg = f"The topics of the flights platform could not be filled (exit code {code}); why is above."
        raise EnvironmentSetupError(msg, fix="mend that, or start without: kpipe dev --no-seed")


def _serve_dagster(port: int, bootstrap_servers: str, folder: Path, environment: Mapping[str, str]) -> None:
    home = Path(environment["DAGSTER_HOME"])
    if "DAGSTER_HOME" not in os.environ:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "dagster.yaml").exists():
            (home / "dagster.yaml").write_text(dagster_yaml(os.cpu_count() or 1), encoding="utf-8")
    # `dg dev`, which it recommends instead, is for projects of another layout.
    quiet = ",".join(filter(None, (environment.get("PYTHONWARNINGS"), _SUPERSEDED)))
    log = folder / "logs" / "dagster.log"
    log.unlink(missing_ok=True)
    workspace = ["-w", "workspace.yaml"] if Path("workspace.yaml").exists() else ["-m", DEFINITIONS]
    dagster = ManagedProcess(
        [sys.executable, "-c", _RUN_DAGSTER, "dev", *workspace, "-h", LOOPBACK, "-p", str(port)],
        log_path=log,
        env={**environment, "PYTHONWARNINGS": quiet},
    )
    echo_new_lines = _follower(log)
    typer.echo("Starting Dagster")
    dagster.start()
    # Every process that Dagster starts belongs to this session, whatever process group it makes for itself.
    session = dagster.pid
    try:
        ready = False
        while dagster.is_running():
            echo_new_lines()
            if not ready and _answers(port):
                ready = True
                typer.secho(
                    f"\n  Dagster UI  http://{LOOPBACK}:{port}\n  Kafka       {bootstrap_servers}\n"
                    f"  Data        {folder}\n  Ctrl-C stops all of it.\n",
                    bold=True,
                )
            time.sleep(_POLL_S)
        echo_new_lines()
        msg = f"Dagster ended by itself with exit code {dagster.returncode}; why is above and in {log}."
        raise EnvironmentSetupError(msg, fix="mend that and start again")
    finally:
        _stop_dagster(dagster, session, echo_new_lines)


def _stop_dagster(dagster: ManagedProcess, session: int | None, echo_new_lines: Callable[[], None]) -> None:
    hurry = threading.Event()
    for each in _STOPPING_SIGNALS:
        signal.signal(each, lambda *_: hurry.set())
    if dagster.is_running():
        typer.echo("Stopping Dagster and Kafka (Ctrl-C again: at once)")
    if dagster.pid is not None:
        # As Ctrl-C in a terminal does for all of its group: runs see it too and are recorded as ended, and only
        # on this signal does Dagster end its services in order.
        with suppress(ProcessLookupError):
            os.killpg(dagster.pid, signal.SIGINT)
    end = time.monotonic() + _DAGSTER_STOP_DEADLINE_S
    while dagster.is_running() and time.monotonic() < end and not hurry.is_set():
        dagster.wait(_POLL_S)
        echo_new_lines()
    dagster.stop(0.0 if hurry.is_set() else _KILL_DEADLINE_S)
    if session is not None:
        _end_session(session)


def _end_session(session: int) -> None:
    """Wait for what is left of a session of processes to end, and end it by force after a deadline."""
    end = time.monotonic() + _KILL_DEADLINE_S
    while members := list(_session_members(session)):
        if time.monotonic() > end:
            for pid in members:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(_POLL_S)


def _session_members(session: int) -> Iterator[int]:
    # Without /proc (macOS) there is nothing to look at: the process group, which was ended before, must do.
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            # After the command in parentheses: state, parent, group, session.
            state, _, _, its_session = stat.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                yield int(stat.parent.name)


def _follower(path: Path) -> Callable[[], None]:
    """Make a function that echoes what was added to a text file since it was last called."""
    seen = 0

    def echo_new_lines() -> None:
        nonlocal seen
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(seen)
            added = file.read()
            # Half a line, or half a character, is left for the next time.
            complete = added[: added.rfind(b"\n") + 1]
            seen += len(complete)
            if complete:
                typer.echo(complete.decode(errors="replace"), nl=False)

    return echo_new_lines


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2.0)
    try:
        connection.request("GET", "/server_info")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def _stopping_signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the program as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in _STOPPING_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _only_user_of(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        msg = f"Another kpipe dev is running with the data in {folder}."
        fix = "stop it, or keep the data of this one elsewhere: --data-dir FOLDER"
        raise EnvironmentSetupError(msg, fix=fix) from error
    except OSError as error:
        msg = f"The data folder {folder} cannot be used: {error}"
        fix = "name one that can be written: --data-dir FOLDER"
        raise EnvironmentSetupError(msg, fix=fix) from error
    try:
        yield
    finally:
        lock.release()


def _ending_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
