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

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The flights platform.")


@app.command()
def run(
    keep: Annotated[
        bool, typer.Option(help="Keep the topics and tables, and go on with those that are there.")
    ] = False,
    data_dir: Annotated[Path, typer.Option(help="Where they are kept.")] = Path(".kpipe/run"),
    flights: Annotated[int | None, typer.Option(min=1, help="Only the first so many flights.")] = None,
) -> None:
    """Run the main job on a broker of its own, and count what became of every flight.

    Exits with 0 when every flight is where it belongs, exactly once; with 1 otherwise.
    """
    from examples.flights.workspace import quiet_stderr, working_folder

    problems = Console(stderr=True, highlight=False)
    with _clear_errors(problems), working_folder(data_dir if keep else None) as folder:
        log = folder / "run.log"
        with _log_kept_on_surprise(log, problems), quiet_stderr(log) as console:
            from examples.flights.progress import Steps
            from examples.flights.run import run as run_job

            warnings.simplefilter("ignore")
            result = run_job(Steps(console), folder, keep=keep, limit=flights)
    from examples.flights.summary import result_line, summary

    out = Console(highlight=False)
    out.print(summary(result))
    for problem in result.problems:
        problems.print(f"wrong: {escape(problem)}", style="bold red")
    # Last, and whole: programs read it.
    typer.echo(result_line(result))
    raise typer.Exit(1 if result.problems else 0)


@app.command()
def seed() -> None:
    """Fill the topics of the flights platform at KAFKA_BOOTSTRAP_SERVERS, unless they are filled.

    Where DAGSTER_HOME names a Dagster instance, planes and airlines are materialized in it too, once: so any partition
    can be launched at once.
    """
    from examples.flights.workspace import quiet_stderr, working_folder

    problems = Console(stderr=True, highlight=False)
    with _clear_errors(problems), working_folder(None) as folder:
        log = folder / "seed.log"
        with _log_kept_on_surprise(log, problems), quiet_stderr(log) as console:
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
def _clear_errors(console: Console) -> Iterator[None]:
    """Let signals unwind the program, and say in a line or two why it ends early."""
    unwind_on_signals()
    try:
        yield
    except KpipeError as error:
        console.print(f"error: {escape(str(error))}", style="bold red", soft_wrap=True)
        raise typer.Exit(1) from None
    except (KeyboardInterrupt, typer.Abort):
        console.print("interrupted: all services are stopped; run it again", style="bold red")
        raise typer.Exit(1) from None


@contextmanager
def _log_kept_on_surprise(log: Path, console: Console) -> Iterator[None]:
    """Turn an error that nobody foresaw into a line, and keep the log that explains it."""
    try:
        yield
    except (KpipeError, typer.Exit):
        raise
    except Exception as error:  # noqa: BLE001  # the last place that can make words of it
        kept = Path(tempfile.gettempdir()) / f"kpipe-run-{os.getpid()}.log"
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        with suppress(OSError):
            shutil.copyfile(log, kept)
        first = (str(error).splitlines() or [""])[0]
        console.print(f"error: {escape(f'{type(error).__name__}: {first}')}", style="bold red", soft_wrap=True)
        console.print(f"  How to fix: see {kept}", soft_wrap=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    sys.exit(app())
