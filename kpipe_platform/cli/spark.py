"""`kpipe spark`: run a warm Spark Connect server on this machine that runs attach to."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kpipe_platform.cli.options import AsJson, Foreground, name_values
from kpipe_platform.cli.output import print_hint, print_json, print_line, progress_lines
from kpipe_platform.cli.tables import print_status
from kpipe_platform.errors import EngineUnavailableError

if TYPE_CHECKING:
    from kpipe_platform.spark.connect.service import EngineOptions, EngineService, EngineStatus

__all__ = ["app"]

app = typer.Typer(help="Run a warm Spark Connect server on this machine that runs attach to.", no_args_is_help=True)

_POLL_S = 0.2


@app.command()
def start(
    master: Annotated[str, typer.Option(help="Spark master: local[*], or the master of a cluster.")] = "local[*]",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the server.", show_default="15002, or a free one if taken"),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Spark setting; repeatable."),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Python packages for a cluster's executors, from `kpipe spark pack`."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            help="Python of a cluster's executors.", show_default="python3 with --archive, else this one's path"
        ),
    ] = None,
    foreground: Foreground = False,
) -> None:
    """Start Spark and print its address for SparkEngine(remote=...).

    The server has the Kafka connector and the packages of this Python. Relative paths are relative to this folder.
    """
    from kpipe_platform.spark.connect.executors import Executors
    from kpipe_platform.spark.connect.service import EngineOptions, EngineService

    settings = name_values(setting or [], example="spark.driver.memory=4g")
    executors = Executors(None if archive is None else archive.absolute(), python)
    options = EngineOptions(master=master, port=port, settings=settings, executors=executors)
    service = EngineService()
    if foreground:
        _run(service, options)
        return
    with progress_lines() as progress:
        status, started = service.start(options, progress=progress)
    print_line(str(status.remote))
    if not started:
        print_hint("The server was already running.")
    print_hint(f"Use it with: SparkEngine(remote={str(status.remote)!r})")
    print_hint("Stop it with: kpipe spark stop")


@app.command()
def pack(
    output: Annotated[Path, typer.Option(help="Archive to write; its name ends in .tar.gz.")] = Path(
        "kpipe-executors.tar.gz"
    ),
    package: Annotated[
        list[str] | None,
        typer.Option(help="Additional installed package, with its dependencies; repeatable."),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(help="Module or package of your own, importable from this folder; repeatable."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Package that the executors already have; repeatable."),
    ] = None,
) -> None:
    """Write an archive of the Python packages that a cluster's executors need.

    Start Spark with it: `kpipe spark start --archive`.
    """
    from kpipe_platform.spark.connect.executor_archive import write_archive

    with _importable_here():
        manifest = write_archive(output, packages=package or [], modules=module or [], without=without or [])
    print_line(str(output))
    print_hint(f"{output.stat().st_size / 1e6:.0f} MB, for Python {manifest.python} on {manifest.machine}:")
    print_hint(
        ", ".join(["kpipe", *(f"{name} {at}" for name, at in manifest.distributions.items()), *manifest.modules])
    )
    print_hint(f"Use it with: kpipe spark start --master spark://HOST:7077 --archive {output}")


@app.command()
def stop() -> None:
    """Stop the Spark Connect server that `kpipe spark start` started."""
    from kpipe_platform.spark.connect.service import EngineService

    print_hint("Stopped." if EngineService().stop() else "There is no Spark Connect server to stop.")


@app.command()
def status(
    as_json: AsJson = False,
) -> None:
    """Show whether Spark is running, its address, its log, and the number of attached processes."""
    from kpipe_platform.spark.connect.service import EngineService

    current = EngineService().status()
    if as_json:
        print_json(current.as_dict())
    else:
        print_status(current.state, _facts(current))
    if current.state == "stopped":
        print_hint("Start it with: kpipe spark start")
    elif current.state == "crashed":
        print_hint("See its log for the reason, then start it again with: kpipe spark start")


@contextmanager
def _importable_here() -> Iterator[None]:
    """Make modules in the current folder importable, as `python -m` does."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))


def _run(service: EngineService, options: EngineOptions) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        with progress_lines() as progress:
            server = stack.enter_context(service.running(options, progress=progress))
        print_line(server.remote)
        print_hint("Stop it with Ctrl-C, or from another terminal with: kpipe spark stop")
        while server.is_running():
            time.sleep(_POLL_S)
        if service.is_wanted():
            msg = f"Spark stopped unexpectedly. The last lines of its log:\n{server.log_tail()}"
            raise EngineUnavailableError(msg, fix="fix the cause that the log names, then start it again")
    print_hint("Stopped.")


def _facts(status: EngineStatus) -> Iterator[tuple[str, str | None]]:
    if status.state != "stopped":
        yield "address", status.remote or "(starting)"
        yield "master", status.master
        yield "process", "not running" if status.pid is None else str(status.pid)
        if status.clients is not None:
            yield "attached", f"{status.clients} process{'' if status.clients == 1 else 'es'}"
        yield "log", status.log
        if status.token is not None:
            yield "token", status.token
    yield "version", f"Spark {status.spark_version}"
