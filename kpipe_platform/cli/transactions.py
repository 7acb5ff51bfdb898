"""`kpipe transactions`: abort the open transaction of a dead producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, connection_settings
from kpipe_platform.cli.options import Yes
from kpipe_platform.cli.output import print_hint

if TYPE_CHECKING:
    from kpipe_platform.kafka.client.settings import ConnectionSettings

__all__ = ["app", "take_over"]

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
    settings = connection_settings(bootstrap_servers)
    if not yes:
        typer.confirm(
            f"Fence the current owner of {transactional_id!r}, even if it is still running?", abort=True, err=True
        )
    take_over(settings, transactional_id)
    print_hint(f"Aborted the open transaction of {transactional_id!r}, if any. Its former owner is fenced.")


def take_over(settings: ConnectionSettings, transactional_id: str) -> None:
    """Take over a transactional id for a moment: fence its owner and abort its open transaction.

    Raises:
        BrokerUnavailableError: The brokers did not answer within the deadline.
        AuthorizationFailedError: An ACL denies the use of the transactional id.
    """
    from kpipe_platform.kafka.transactions.slice import initialised

    initialised(settings, transactional_id).close()
