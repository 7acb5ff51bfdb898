"""``python -m examples.flights run|seed``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from examples.flights.interrupts import unwind_on_signals
from kpipe_platform.errors import KpipeError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Run the flights platform once, or fill its topics.")


@app.command()
def run(
    keep: Annotated[
        bool, typer.Option(help="Keep the topics and tables, and continue with those of the last run.")
    ] = False,
    data_dir: Annotated[Path, typer.Option(help="Folder for kept topics and tables.")] = Path(".kpipe/run"),
    flights: Annotated[int | None, typer.Option(min=1, help="Number of flights.", show_default="all")] = None,
) -> None:
    """Process the flights on a separate broker, and verify that each was processed exactly once.

    Exits with 0 if every flight is in the right topic exactly once, and with 1 otherwise.
    """
    from examples.flights.workspace import quiet_stderr, working_folder

    problems = Console(stderr=True, highlight=False)
    with _readable_errors(problems), working_folder(data_dir if keep else None) as folder:
        log = folder / "run.log"
        with _log_kept_on_error(log, problems), quiet_stderr(log) as console:
            from examples.flights.progress import Steps
            from examples.flights.run import run as run_job

            warnings.simplefilter("ignore")
            result = run_job(Steps(console), folder, keep=keep, limit=flights)
    from examples.flights.summary import result_line, summary

    out = Console(highlight=False)
    out.print(summary(result))
    for problem in result.problems:
        problems.print(f"problem: {escape(problem)}", style="bold red")
    # The last line, without wrapping, because programs parse it.
    typer.echo(result_line(result))
    raise typer.Exit(1 if result.problems else 0)


@app.command()
def seed() -> None:
    """Fill the topics of the flights platform at KAFKA_BOOTSTRAP_SERVERS, unless they are already filled.

    If DAGSTER_HOME is set, planes and airlines are also materialized once in that Dagster instance, so that any
    partition can be launched immediately.
    """
    from examples.flights.workspace import quiet_stderr, working_folder

    problems = Console(stderr=True, highlight=False)
    with _readable_errors(problems), working_folder(None) as folder:
        log = folder / "seed.log"
        with _log_kept_on_error(log, problems), quiet_stderr(log) as console:
            _seed(console, folder)


def _seed(console: Console, folder: Path) -> None:
    from examples.flights.progress import Steps
    from examples.flights.seed import seed as seed_topics
    from kpipe_platform.demo import data
    from kpipe_platform.kafka.client.settings import ConnectionSettings

    warnings.simplefilter("ignore")
    steps = Steps(console)
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or "127.0.0.1:9092"
    flights = data.flights()
    with steps.step("Writing flights to Kafka", total=len(flights)) as step:
        step.at(seed_topics(ConnectionSettings(bootstrap_servers=servers), flights, step.at).written)
    if os.environ.get("DAGSTER_HOME"):
        from examples.flights.reference import materialize_reference

        materialize_reference(steps, folder)


@contextmanager
def _readable_errors(console: Console) -> Iterator[None]:
    """Stop cleanly on signals, and print a short reason if the program ends early."""
    unwind_on_signals()
    try:
        yield
    except KpipeError as error:
        console.print(f"error: {escape(str(error))}", style="bold red", soft_wrap=True)
        raise typer.Exit(1) from None
    except (KeyboardInterrupt, typer.Abort):
        console.print("interrupted: all services are stopped. Run the command again to continue", style="bold red")
        raise typer.Exit(1) from None


@contextmanager
def _log_kept_on_error(log: Path, console: Console) -> Iterator[None]:
    """Print an unexpected error as one line, and keep the log with its traceback."""
    try:
        yield
    except (KpipeError, typer.Exit):
        raise
    except Exception as error:  # noqa: BLE001  # the last handler before the user
        kept = Path(tempfile.gettempdir()) / f"kpipe-run-{os.getpid()}.log"
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        with suppress(OSError):
            shutil.copyfile(log, kept)
        first = (str(error).splitlines() or [""])[0]
        console.print(f"error: {escape(f'{type(error).__name__}: {first}')}", style="bold red", soft_wrap=True)
        console.print(f"  How to fix: see the traceback in {kept}", soft_wrap=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    sys.exit(app())
