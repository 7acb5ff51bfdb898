"""`kpipe broker`: run a Kafka broker on this machine for development."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kpipe_platform.cli.options import AsJson, Foreground, name_values
from kpipe_platform.cli.output import print_hint, print_json, print_line, progress_lines
from kpipe_platform.cli.tables import print_status
from kpipe_platform.errors import BrokerUnavailableError
from kpipe_platform.jvm.logs import tail

if TYPE_CHECKING:
    from kpipe_platform.testing.broker.service import BrokerService
    from kpipe_platform.testing.broker.status import ServiceOptions, ServiceStatus

__all__ = ["app"]

app = typer.Typer(help="Run a Kafka broker on this machine for development.", no_args_is_help=True)

_POLL_S = 0.2


@app.command()
def start(
    brokers: Annotated[int, typer.Option(min=1, max=3, help="Number of brokers.")] = 1,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for the data.", show_default="in the state folder")
    ] = None,
    throw_away: Annotated[
        bool, typer.Option("--throw-away/--keep", help="Delete the data when the broker stops, or keep it.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the first broker.", show_default="9092, or a free one if taken"),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Broker setting; repeatable."),
    ] = None,
    foreground: Foreground = False,
) -> None:
    """Start Kafka and print its bootstrap servers.

    The first start downloads Kafka, which takes about a minute. Later starts take a few seconds.
    """
    from kpipe_platform.testing.broker.service import BrokerService
    from kpipe_platform.testing.broker.status import ServiceOptions

    settings = name_values(setting or [], example="message.max.bytes=2000000")
    options = ServiceOptions(brokers=brokers, data_dir=data_dir, keep=not throw_away, port=port, settings=settings)
    service = BrokerService()
    if foreground:
        _run(service, options)
        return
    with progress_lines() as progress:
        status, started = service.start(options, progress=progress)
    print_line(str(status.bootstrap_servers))
    if not started:
        print_hint("The broker was already running.")
    print_hint(_data_note(status))
    print_hint("Stop it with: kpipe broker stop")


@app.command()
def stop() -> None:
    """Stop the broker that `kpipe broker start` started."""
    from kpipe_platform.testing.broker.service import BrokerService

    service = BrokerService()
    status = service.status()
    if not service.stop():
        print_hint("There is no broker to stop.")
    elif status.keep:
        print_hint(f"Stopped. The data is kept in {status.data_dir}.")
    else:
        print_hint("Stopped. The data is deleted.")


@app.command()
def status(
    as_json: AsJson = False,
) -> None:
    """Show whether the broker is running, and where its data and logs are."""
    from kpipe_platform.testing.broker.service import BrokerService

    current = BrokerService().status()
    if as_json:
        print_json(current.as_dict())
    else:
        print_status(current.state, _facts(current))
    if current.state == "stopped":
        print_hint("Start it with: kpipe broker start")
    elif current.state in ("crashed", "degraded"):
        print_hint("See its log for the reason, then start it again with: kpipe broker start")


def _run(service: BrokerService, options: ServiceOptions) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        with progress_lines() as progress:
            broker = stack.enter_context(service.running(options, progress=progress))
        print_line(broker.bootstrap_servers)
        print_hint("Stop it with Ctrl-C, or from another terminal with: kpipe broker stop")
        while all(pid is not None for pid in broker.pids):
            time.sleep(_POLL_S)
        if service.is_wanted():
            # The message quotes the log, because a throw-away broker deletes its log when it stops.
            ended = broker.pids.index(None)
            lines = tail(broker.log_paths[ended], 30)
            msg = f"Broker {ended} stopped unexpectedly. The last lines of its log:\n{lines}"
            raise BrokerUnavailableError(msg, fix="fix the cause that the log names, then start it again")
    print_hint("Stopped.")


def _data_note(status: ServiceStatus) -> str:
    if status.keep:
        return f"Kafka {status.kafka_version}; data is kept in {status.data_dir}"
    return f"Kafka {status.kafka_version}; data is deleted when the broker stops"


def _facts(status: ServiceStatus) -> Iterator[tuple[str, str | None]]:
    if status.nodes:
        yield "bootstrap servers", status.bootstrap_servers or "(starting)"
        yield "data", f"{status.data_dir} ({'kept' if status.keep else 'deleted when the broker stops'})"
        for node in status.nodes:
            name = "broker" if len(status.nodes) == 1 else f"broker {node.broker}"
            yield name, "not running" if node.pid is None else f"process {node.pid}"
            yield "log", node.log
    yield "version", f"Kafka {status.kafka_version}"
