"""`kpipe transactions`: abort the open transaction of a dead producer."""

from __future__ import annotations

from typing import Annotated

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, connection_settings
from kpipe_platform.cli.output import print_hint

app = typer.Typer(help="End what a dead producer left open.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    # With this callback, typer keeps `abort` as a subcommand although it is the only one.
    pass


@app.command()
def abort(
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID", help="Whose transaction to abort.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Abort the open transaction of a transactional id, if it has one, and shut its owner out.

    An owner that is still alive fails at its next call. Runs of kpipe do this for their own ids by themselves.
    """
    from kpipe_platform.kafka.transactions.base import abort_lingering

    settings = connection_settings(bootstrap_servers)
    if not yes:
        typer.confirm(f"Shut the present owner of {transactional_id!r} out, dead or alive?", abort=True, err=True)
    abort_lingering(settings, transactional_id)
    print_hint(f"Whatever {transactional_id!r} had open is aborted, and its former owner is fenced.")
