"""`kpipe topics`: create, describe and list topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, open_clients
from kpipe_platform.cli.options import AsJson, name_values
from kpipe_platform.cli.output import print_hint, print_json, print_line
from kpipe_platform.cli.tables import print_table
from kpipe_platform.errors import ConfigError, TopicNotFoundError

if TYPE_CHECKING:
    from kpipe_platform.kafka.client.clients import Clients

__all__ = ["app"]

app = typer.Typer(help="Create, list and describe topics.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")],
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each partition.", show_default="the brokers' setting")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Topic setting; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Create a topic, wait until it is ready, and print its name."""
    from kpipe_platform.kafka.admin.topics import TopicSpec, await_visible, create_topic

    spec = TopicSpec(
        partitions, replication_factor, name_values(config or [], option="--config", example="retention.ms=-1")
    )
    with open_clients(bootstrap_servers) as clients:
        created = create_topic(clients, name, spec)
        if not created and not if_not_exists:
            msg = f"topic {name!r} already exists at {bootstrap_servers}"
            fix = f"use another name, or --if-not-exists to keep it; to see it: kpipe topics describe {name}"
            raise ConfigError(msg, fix=fix, topic=name)
        topic = await_visible(clients, name)
    print_line(name)
    if created:
        print_hint(f"Created with {topic.partitions} partition(s) and topic id {topic.topic_id}.")
    else:
        print_hint(f"The topic already exists, with {topic.partitions} partition(s). Nothing was changed.")


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")],
    as_json: AsJson = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Show a topic's id, its non-default settings, and the log start and end of each partition."""
    with open_clients(bootstrap_servers) as clients:
        topic = _describe(clients, name)
    if as_json:
        print_json(topic)
        return
    print_table(("topic", "id"), [(topic["name"], topic["topic_id"])])
    for setting, value in topic["config"].items():
        print_line(f"{setting}={value}")
    print_line("")
    print_table(
        ("partition", "leader", "replicas", "in sync", "log start", "end", "open"),
        [
            (
                p["partition"],
                p["leader"],
                ",".join(map(str, p["replicas"])),
                ",".join(map(str, p["in_sync"])),
                p["log_start"],
                p["end"],
                p["held_by_open_transactions"],
            )
            for p in topic["partitions"]
        ],
    )
    if any(p["held_by_open_transactions"] for p in topic["partitions"]):
        print_hint("Offsets under 'open' are in open transactions: read_committed consumers wait for these to end.")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Include Kafka's internal topics.")] = False,
    as_json: AsJson = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """List the topics with their number of partitions."""
    from confluent_kafka import KafkaException

    from kpipe_platform.kafka.client.calls import translate

    with open_clients(bootstrap_servers) as clients:
        settings = clients.settings
        try:
            metadata = clients.admin().list_topics(timeout=settings.request_timeout_s)
        except KafkaException as error:
            raise translate(error, settings, "list topics") from error
    partitions = {
        name: len(topic.partitions)
        for name, topic in sorted(metadata.topics.items())
        if internal or not name.startswith("__")
    }
    if as_json:
        print_json([{"name": name, "partitions": count} for name, count in partitions.items()])
    elif partitions:
        print_table(("topic", "partitions"), list(partitions.items()))
    else:
        print_hint("There are no topics.")


def _describe(clients: Clients, name: str) -> dict[str, Any]:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import ConfigResource, ResourceType

    from kpipe_platform.kafka.admin.topics import missing_topic
    from kpipe_platform.kafka.client.calls import ask
    from kpipe_platform.kafka.model.offsets import read_watermarks

    settings = clients.settings
    admin, timeout_s = clients.admin(), settings.request_timeout_s
    try:
        topic = ask(
            lambda: admin.describe_topics(TopicCollection([name]), request_timeout=timeout_s)[name],
            clients,
            f"describe topic {name}",
            topic=name,
        )
    except TopicNotFoundError as error:
        raise missing_topic(name, settings.bootstrap_servers) from error
    resource = ConfigResource(ResourceType.TOPIC, name)
    config = ask(
        lambda: admin.describe_configs([resource], request_timeout=timeout_s)[resource],
        clients,
        f"read the settings of topic {name}",
        needs="DescribeConfigs",
        topic=name,
    )
    wanted = [(name, partition.id) for partition in topic.partitions]
    stable = read_watermarks(clients, wanted, "read_committed")
    written = read_watermarks(clients, wanted, "read_uncommitted")
    return {
        "name": name,
        "topic_id": str(topic.topic_id),
        "config": {e.name: e.value for e in sorted(config.values(), key=lambda e: e.name) if not e.is_default},
        "partitions": [
            {
                "partition": partition.id,
                "leader": None if partition.leader is None else partition.leader.id,
                "replicas": [node.id for node in partition.replicas],
                "in_sync": [node.id for node in partition.isr],
                "log_start": stable[(name, partition.id)].log_start,
                "end": stable[(name, partition.id)].end,
                "held_by_open_transactions": max(
                    written[(name, partition.id)].end - stable[(name, partition.id)].end, 0
                ),
            }
            for partition in sorted(topic.partitions, key=lambda p: p.id)
        ],
    }
