"""`kpipe dev`: start and stop a broker, a warm Spark and the Dagster UI together."""

from __future__ import annotations

import ctypes
import http.client
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout

from kpipe_platform.cli.dev.engine import DevEngine, warm_engine
from kpipe_platform.cli.dev.services import DagsterServices
from kpipe_platform.cli.dev.signals import StopSignals, stop_signals
from kpipe_platform.cli.output import progress_lines
from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.jvm.ports import LOOPBACK, is_free
from kpipe_platform.testing.broker.embedded import EmbeddedBroker

__all__ = ["dagster_yaml", "dev", "service_environment"]

_POLL_S = 0.2
_KILL_DEADLINE_S = 5.0
_PR_SET_PDEATHSIG = 1
# The slot tag prevents concurrent runs of one Kafka partition. A run that waits for a pool stays in the queue, where it
# has no process. By default, Dagster reads the queue every 5 s, which would delay every record.
_DAGSTER_YAML = """\
telemetry:
  enabled: false
nux:
  enabled: false
run_launcher:
  module: kpipe_platform.partitions.launcher
  class: KafkaRunLauncher
run_monitoring:
  enabled: true
  poll_interval_seconds: 30
run_coordinator:
  module: kpipe_platform.partitions.coordinator
  class: KafkaRunCoordinator
  config:
    dequeue_interval_seconds: 1
concurrency:
  runs:
    max_concurrent_runs: {runs}
    tag_concurrency_limits:
      - key: kpipe/slot
        value:
          applyLimitPerUniqueValue: true
        limit: 1
  pools:
    granularity: run
"""


def dev(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Dagster UI.")] = 3000,
    brokers: Annotated[int, typer.Option(min=1, max=3, help="Kafka brokers to start.")] = 1,
    data_dir: Annotated[Path, typer.Option(help="Where topics, tables and Dagster's history are kept.")] = Path(
        ".kpipe/dev"
    ),
    seed: Annotated[
        str,
        typer.Option(metavar="COMMAND", help="Run this before Dagster starts, to fill topics."),
    ] = "",
    drain_s: Annotated[float, typer.Option(min=0.0, help="Seconds that Ctrl-C waits for the runs at work.")] = 30.0,
    warm: Annotated[
        bool, typer.Option("--warm-engine/--no-warm-engine", help="Runs attach to one Spark, or each starts its own.")
    ] = True,
) -> None:
    """Start Kafka and the Dagster UI; Ctrl-C lets the runs at work finish and stops it.

    Dagster loads the workspace.yaml of the current folder, or the flights platform where there is none. The command of
    --seed finds the address of the broker in KAFKA_BOOTSTRAP_SERVERS and Dagster's folder in DAGSTER_HOME.

    A second Ctrl-C ends those runs: nothing of them is committed. Runs that are queued wait for the next start. Data is
    kept: the next start goes on where this one ended. Delete the data folder to start afresh.
    """
    if not is_free(port):
        raise EnvironmentSetupError(
            f"Port {port} is in use, so the Dagster UI cannot be there.",
            fix=f"stop what listens on it, or take another: make dev PORT={port + 1} "
            f"(that is kpipe dev --port {port + 1})",
            port=port,
        )
    folder = data_dir.absolute()
    command = _seed_command(seed)
    try:
        with stop_signals() as signals, _only_user_of(folder):
            _serve(port, brokers, folder, seed=command, warm=warm, drain_s=drain_s, signals=signals)
    except KeyboardInterrupt:
        _say("Stopped.")


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
        cpus: Processors of this machine. Each run may start a Spark of a GB where there is no warm engine, so there
            are no more runs than processors, and no more than four.
    """
    return _DAGSTER_YAML.format(runs=max(1, min(4, cpus)))


def _serve(
    port: int, brokers: int, folder: Path, *, seed: Sequence[str], warm: bool, drain_s: float, signals: StopSignals
) -> None:
    typer.echo(f"Starting Kafka ({brokers} broker{'s' if brokers > 1 else ''}), data in {folder}")
    with progress_lines() as show:
        broker = EmbeddedBroker(brokers, folder / "kafka", keep_data=True, progress=show)
        broker.start()
    try:
        environment = service_environment(os.environ, bootstrap_servers=broker.bootstrap_servers, folder=folder)
        if seed:
            typer.echo("Filling topics")
            _seed(seed, environment)
        with ExitStack() as stack:
            with progress_lines() as show:
                engine = stack.enter_context(
                    warm_engine(folder / "spark", os.environ, wanted=warm, say=_say, progress=show)
                )
            if engine is not None:
                environment.update(engine.environment)
            addresses = {"Kafka": broker.bootstrap_servers} | ({"Spark": engine.remote} if engine is not None else {})
            _serve_dagster(port, addresses, folder, environment, engine, drain_s=drain_s, signals=signals)
    finally:
        broker.stop()


def _seed_command(text: str) -> list[str]:
    try:
        command = shlex.split(text)
    except ValueError as error:
        msg = f"The command of --seed, {text}, cannot be split into words: {error}"
        raise EnvironmentSetupError(msg, fix="quote it as a shell needs it") from error
    if command and shutil.which(command[0]) is None:
        msg = f"There is no program {command[0]}, which --seed names."
        raise EnvironmentSetupError(msg, fix="name a program on PATH, or its path from this folder")
    return command


def _seed(command: Sequence[str], environment: Mapping[str, str]) -> None:
    # The command writes directly to this terminal, so that it can draw a progress bar.
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
        msg = f"The command of --seed failed with exit code {code}; the reason is above."
        raise EnvironmentSetupError(msg, fix="fix that, or start without --seed")


def _serve_dagster(
    port: int,
    addresses: Mapping[str, str],
    folder: Path,
    environment: Mapping[str, str],
    engine: DevEngine | None,
    *,
    drain_s: float,
    signals: StopSignals,
) -> None:
    home = Path(environment["DAGSTER_HOME"])
    if "DAGSTER_HOME" not in os.environ:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "dagster.yaml").exists():
            (home / "dagster.yaml").write_text(dagster_yaml(os.cpu_count() or 1), encoding="utf-8")
    log = folder / "logs" / "dagster.log"
    log.unlink(missing_ok=True)
    dagster = DagsterServices(port, log, environment, _say)
    echo_new_lines = _follower(log)
    typer.echo("Starting Dagster")
    try:
        dagster.start()
        ready = False
        while dagster.is_running():
            echo_new_lines()
            if not ready and _answers(port):
                ready = True
                listed = {"Dagster UI": f"http://{LOOPBACK}:{port}", **addresses, "Data": str(folder)}
                lines = "".join(f"  {what:<12}{where}\n" for what, where in listed.items())
                typer.secho(f"\n{lines}  Ctrl-C lets the runs at work finish, then stops all of it.\n", bold=True)
            if engine is not None:
                engine.look()
            time.sleep(_POLL_S)
        echo_new_lines()
        msg = f"Dagster ended by itself with exit code {dagster.returncode}; why is above and in {log}."
        raise EnvironmentSetupError(msg, fix="mend that and start again")
    finally:
        dagster.stop(signals, drain_s, echo_new_lines)


def _say(line: str) -> None:
    # The terminal may already be closed.
    with suppress(OSError):
        typer.echo(line)


def _follower(path: Path) -> Callable[[], None]:
    """Return a function that prints the lines that were added to a text file since its last call."""
    seen = 0

    def echo_new_lines() -> None:
        nonlocal seen
        # The file may not exist yet, and the terminal may already be closed.
        with suppress(OSError), path.open("rb") as file:
            file.seek(seen)
            added = file.read()
            # An incomplete line or character is left for the next call.
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
