"""`kpipe transactions`: end what a dead producer left open."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, connection_settings
from kpipe_platform.cli.output import print_hint

if TYPE_CHECKING:
    from kpipe_platform.kafka.settings import ConnectionSettings

__all__ = ["app", "take_over"]

app = typer.Typer(help="End what a dead producer left open.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    # With it typer keeps `abort` a command of its own, though it is the only one.
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
    settings = connection_settings(bootstrap_servers)
    if not yes:
        typer.confirm(f"Shut the present owner of {transactional_id!r} out, dead or alive?", abort=True, err=True)
    take_over(settings, transactional_id)
    print_hint(f"Whatever {transactional_id!r} had open is aborted, and its former owner is fenced.")


def take_over(settings: ConnectionSettings, transactional_id: str) -> None:
    """Become the owner of a transactional id for a moment: fences the former one and aborts what it left open.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
        AuthorizationFailedError: The transactional id may not be used.
    """
    from confluent_kafka import KafkaException, Producer

    from kpipe_platform.kafka.calls import kafka_error, translate
    from kpipe_platform.kafka.clients import new_client

    config = {**settings.for_librdkafka(), "transactional.id": transactional_id}
    producer = new_client(Producer, config, settings)
    deadline = time.monotonic() + settings.request_timeout_s
    while True:
        try:
            producer.init_transactions(max(deadline - time.monotonic(), 0.1))
        except KafkaException as exception:
            # While the brokers still abort the former owner's transaction they ask to be asked again.
            if kafka_error(exception).retriable() and time.monotonic() < deadline:
                continue
            what = f"take over transactional id {transactional_id}"
            raise translate(exception, settings, what) from exception
        return
