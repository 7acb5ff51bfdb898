"""`kpipe dev`: run a broker, a warm Spark, the Dagster UI and, if wanted, a schema registry together."""

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
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry

__all__ = ["dagster_yaml", "dev", "service_environment"]

_POLL_S = 0.2
# Schema registries usually have this port.
_REGISTRY_PORT = 8081
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
    brokers: Annotated[int, typer.Option(min=1, max=3, help="Number of Kafka brokers.")] = 1,
    data_dir: Annotated[Path, typer.Option(help="Folder for topics, tables and Dagster's history.")] = Path(
        ".kpipe/dev"
    ),
    seed: Annotated[
        str,
        typer.Option(metavar="COMMAND", help="Command that fills topics before Dagster starts."),
    ] = "",
    drain_s: Annotated[float, typer.Option(min=0.0, help="Seconds that Ctrl-C waits for active runs.")] = 30.0,
    registry: Annotated[bool, typer.Option("--registry", help="Also start a schema registry.")] = False,
    warm: Annotated[
        bool, typer.Option("--warm-engine/--no-warm-engine", help="Start one Spark for all runs, or one in each run.")
    ] = True,
) -> None:
    """Start Kafka, a warm Spark, the Dagster UI and, with --registry, a schema registry.

    Dagster loads workspace.yaml from the current folder, or the flights platform if there is none. The --seed command
    gets the broker's address in KAFKA_BOOTSTRAP_SERVERS, the registry's in SCHEMA_REGISTRY_URL, Spark's in
    KPIPE_SPARK_REMOTE and Dagster's folder in DAGSTER_HOME. Spark may still be starting.

    Press Ctrl-C to finish active runs and shut down. Press it again to cancel these runs: they commit nothing. Queued
    runs start the next time. Data is kept; delete the data folder to start from scratch.
    """
    if not is_free(port):
        raise EnvironmentSetupError(
            f"Port {port} is in use, so the Dagster UI cannot listen on it.",
            fix=f"stop the program that listens on it, or use another port: make dev PORT={port + 1}, "
            f"or kpipe dev --port {port + 1}",
            port=port,
        )
    folder = data_dir.absolute()
    command = _seed_command(seed)
    try:
        with stop_signals() as signals, _only_user_of(folder):
            _serve(port, brokers, folder, seed=command, registry=registry, warm=warm, drain_s=drain_s, signals=signals)
    except KeyboardInterrupt:
        _say("Stopped.")


def service_environment(
    environment: Mapping[str, str], *, bootstrap_servers: str, folder: Path, registry_url: str | None = None
) -> dict[str, str]:
    """Return the environment of Dagster and of the seed command.

    Args:
        environment: Environment of this process. Its DAGSTER_HOME and KPIPE_DATA_DIR override the defaults.
        bootstrap_servers: Address of the broker; overrides the environment.
        folder: The data folder.
        registry_url: Address of the schema registry; overrides the environment. None if none was started.
    """
    defaults = {"DAGSTER_HOME": str(folder / "dagster"), "KPIPE_DATA_DIR": str(folder / "tables")}
    return {
        **defaults,
        **environment,
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
        **({} if registry_url is None else {"SCHEMA_REGISTRY_URL": registry_url}),
        "PYTHONUNBUFFERED": "1",
    }


def dagster_yaml(cpus: int) -> str:
    """Return the settings of the Dagster instance that `kpipe dev` creates.

    Args:
        cpus: Number of processors of this machine. Without a warm engine, each run starts a Spark of 1 GB, so at most
            as many runs as processors are active, and at most four.
    """
    return _DAGSTER_YAML.format(runs=max(1, min(4, cpus)))


def _serve(
    port: int,
    brokers: int,
    folder: Path,
    *,
    seed: Sequence[str],
    registry: bool,
    warm: bool,
    drain_s: float,
    signals: StopSignals,
) -> None:
    with ExitStack() as stack:
        _say(f"Starting Kafka ({brokers} broker{'s' if brokers > 1 else ''}), data in {folder}")
        with progress_lines() as show:
            broker = EmbeddedBroker(brokers, folder / "kafka", keep_data=True, progress=show)
            stack.callback(broker.stop)
            # Spark starts while Kafka starts and is filled.
            engine = stack.enter_context(
                warm_engine(folder / "spark", os.environ, wanted=warm, say=_say, progress=show)
            )
            broker.start()
            registry_url = stack.enter_context(_registry(folder / "registry", show)) if registry else None
        environment = service_environment(
            os.environ, bootstrap_servers=broker.bootstrap_servers, folder=folder, registry_url=registry_url
        )
        addresses = {"Kafka": broker.bootstrap_servers}
        if registry_url is not None:
            addresses["Registry"] = registry_url
            # For producers in other terminals.
            _say(f"export SCHEMA_REGISTRY_URL={registry_url}")
        if engine is not None:
            environment.update(engine.environment)
            addresses["Spark"] = engine.remote
        if seed:
            _say("Filling topics")
            _seed(seed, environment, engine)
        if engine is not None:
            engine.wait()
        _serve_dagster(port, addresses, folder, environment, engine, drain_s=drain_s, signals=signals)


@contextmanager
def _registry(folder: Path, show: Callable[[str], None]) -> Iterator[str]:
    _say("Starting a schema registry")
    port = _REGISTRY_PORT if is_free(_REGISTRY_PORT) else None
    with EmbeddedRegistry(folder, port=port, progress=show) as registry:
        yield registry.url


def _seed_command(text: str) -> list[str]:
    try:
        command = shlex.split(text)
    except ValueError as error:
        msg = f"--seed {text!r} is not a valid shell command: {error}"
        raise EnvironmentSetupError(msg, fix="quote it as in a shell") from error
    if command and shutil.which(command[0]) is None:
        msg = f"The program {command[0]} of the --seed command does not exist."
        raise EnvironmentSetupError(msg, fix="use a program on PATH, or its path relative to this folder")
    return command


def _seed(command: Sequence[str], environment: Mapping[str, str], engine: DevEngine | None = None) -> None:
    # The command writes directly to this terminal, so that it can draw a progress bar.
    with subprocess.Popen(command, env=environment, preexec_fn=_ending_with_parent()) as seeding:
        try:
            while (code := seeding.poll()) is None:
                with suppress(subprocess.TimeoutExpired):
                    seeding.wait(_POLL_S)
                if engine is not None:
                    # The command may wait for Spark.
                    engine.check()
        except BaseException:
            seeding.terminate()
            try:
                seeding.wait(_KILL_DEADLINE_S)
            except subprocess.TimeoutExpired:
                seeding.kill()
            raise
    if code != 0:
        msg = f"The --seed command failed with exit code {code}; see its output above."
        raise EnvironmentSetupError(msg, fix="fix the cause, or start without --seed")


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
    _say("Starting Dagster")
    try:
        dagster.start()
        ready = False
        while dagster.is_running():
            echo_new_lines()
            if not ready and _answers(port):
                ready = True
                listed = {"Dagster UI": f"http://{LOOPBACK}:{port}", **addresses, "Data": str(folder)}
                lines = "".join(f"  {what:<12}{where}\n" for what, where in listed.items())
                typer.secho(f"\n{lines}  Press Ctrl-C to finish active runs and shut down.\n", bold=True)
            if engine is not None:
                engine.restart_if_ended()
            time.sleep(_POLL_S)
        echo_new_lines()
        msg = f"Dagster stopped unexpectedly with exit code {dagster.returncode}; see its output above, or {log}."
        raise EnvironmentSetupError(msg, fix="fix the cause, then start again")
    finally:
        dagster.stop(signals, drain_s, echo_new_lines)


def _say(line: str) -> None:
    # The terminal may already be closed.
    with suppress(OSError):
        typer.echo(line, err=True)


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
                typer.echo(complete.decode(errors="replace"), nl=False, err=True)

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
        msg = f"Another kpipe dev is already running with the data in {folder}."
        fix = "stop it, or use another folder: --data-dir FOLDER"
        raise EnvironmentSetupError(msg, fix=fix) from error
    except OSError as error:
        msg = f"The data folder {folder} cannot be used: {error}"
        fix = "use a folder that you can write to: --data-dir FOLDER"
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
