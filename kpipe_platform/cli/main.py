"""The application `kpipe`: its commands and their common options.

To add a group of commands, add a module with a `typer.Typer` and one line here. Commands import their dependencies when
they run, so that help and completion stay fast.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kpipe_platform.cli import broker, offsets, partitions, preflight, spark, topics, transactions
from kpipe_platform.cli.dev import command as dev
from kpipe_platform.cli.dlq import browse as dlq
from kpipe_platform.cli.output import print_error, print_line
from kpipe_platform.errors import KpipeError

__all__ = ["app", "main"]


class _KpipeGroup(TyperGroup):
    """Prints kpipe's errors as text with a fix. Any other exception is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KpipeError as error:
            print_error(error)
            logging.getLogger(__name__).debug("traceback of the error", exc_info=error)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="kpipe",
    cls=_KpipeGroup,
    help="Kafka as a source and destination of Dagster assets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(broker.app, name="broker")
app.add_typer(spark.app, name="spark")
app.add_typer(topics.app, name="topics")
app.add_typer(offsets.app, name="offsets")
app.add_typer(partitions.app, name="partitions")
app.add_typer(dlq.app, name="dlq")
app.add_typer(transactions.app, name="transactions")
app.command()(dev.dev)
app.command()(preflight.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"kpipe {_version()}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details to standard error.")] = False,
) -> None:
    if verbose:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("kpipe_platform").setLevel(logging.DEBUG)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kpipe-platform")
    except PackageNotFoundError:
        return "(not installed)"


def main() -> None:
    """Run the application; the entry point of the command."""
    app()
