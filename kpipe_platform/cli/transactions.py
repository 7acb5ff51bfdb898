"""`kpipe transactions`: abort the open transaction of a dead producer."""

from __future__ import annotations

from typing import Annotated

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, connection_settings
from kpipe_platform.cli.options import Yes
from kpipe_platform.cli.output import print_hint

app = typer.Typer(help="Abort transactions that a dead producer left open.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    # With this callback, typer keeps `abort` as a subcommand although it is the only one.
    pass


@app.command()
def abort(
    transactional_id: Annotated[
        str, typer.Argument(metavar="TRANSACTIONAL_ID", help="Transactional id of the producer.")
    ],
    yes: Yes = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Abort the open transaction of a transactional id, if any, and fence its owner.

    If the owner is still running, its next request fails. Runs of kpipe do this automatically for their own ids.
    """
    from kpipe_platform.kafka.transactions.base import abort_lingering

    settings = connection_settings(bootstrap_servers)
    if not yes:
        typer.confirm(
            f"Fence the current owner of {transactional_id!r}, even if it is still running?", abort=True, err=True
        )
    abort_lingering(settings, transactional_id)
    print_hint(f"Aborted the open transaction of {transactional_id!r}, if any. Its former owner is fenced.")
