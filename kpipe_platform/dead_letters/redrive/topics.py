"""Target topics of a redrive. Each is described once; only the parking topic may be created."""

from __future__ import annotations

from confluent_kafka.admin import ConfigResource, ResourceType

from kpipe_platform.dead_letters.redrive.decide import TargetTopic
from kpipe_platform.errors import TopicNotFoundError
from kpipe_platform.kafka.admin.topics import TopicLimits, TopicSpec, create_topic, describe_topics, topic_limits
from kpipe_platform.kafka.client.calls import ask
from kpipe_platform.kafka.client.clients import Clients


class RedriveTopics:
    """Describes topics, and caches the descriptions.

    Args:
        clients: Clients to use.
        parking_topic: The topic that may be created.
        parking_partitions: Number of partitions of a new parking topic. None means that it must exist.
        dry_run: Create nothing. A parking topic that would be created counts as existing.
    """

    def __init__(
        self, clients: Clients, parking_topic: str, *, parking_partitions: int | None = None, dry_run: bool = False
    ) -> None:
        self._clients = clients
        self._parking_topic = parking_topic
        self._parking_partitions = parking_partitions
        self._dry_run = dry_run
        self._known: dict[str, TargetTopic] = {}
        self._missing: dict[str, TopicNotFoundError] = {}

    def __call__(self, name: str) -> TargetTopic:
        """Describe a topic.

        Raises:
            TopicNotFoundError: The topic does not exist and may not be created.
        """
        if name in self._missing:
            raise self._missing[name]
        found = self._known.get(name)
        if found is None:
            try:
                found = self._known[name] = self._describe(name)
            except TopicNotFoundError as error:
                # All dead letters of a deleted topic are kept, and one request is enough.
                self._missing[name] = error
                raise
        return found

    def _describe(self, name: str) -> TargetTopic:
        try:
            described = describe_topics(self._clients, [name])[name]
        except TopicNotFoundError as error:
            if name != self._parking_topic:
                role, choice = "a target topic of the redrive", "; or choose another topic: --to-topic TOPIC"
            elif self._parking_partitions is None:
                role, choice = "the topic for parked dead letters", "; or use --create-parking-topic"
            else:
                return self._create(name)
            fix = f"create it: kpipe topics create {name} --partitions N{choice}"
            raise TopicNotFoundError(f"{error.message}; it is {role}", fix=fix, topic=name) from error
        return self._found(name, described.partitions)

    def _create(self, name: str) -> TargetTopic:
        # Parked dead letters keep their old timestamps and must stay until an operator handles them.
        spec = TopicSpec(self._parking_partitions or 1, config={"retention.ms": "-1"})
        if self._dry_run:
            return TargetTopic(name, spec.partitions, TopicLimits())
        create_topic(self._clients, name, spec)
        return self._found(name, describe_topics(self._clients, [name])[name].partitions)

    def _found(self, name: str, partitions: int) -> TargetTopic:
        limits = topic_limits(self._clients, [name])[name]
        return TargetTopic(name, partitions, limits, self._retention_ms(name))

    def _retention_ms(self, name: str) -> int | None:
        resource = ConfigResource(ResourceType.TOPIC, name)
        timeout_s = self._clients.settings.request_timeout_s
        entries = ask(
            lambda: self._clients.admin().describe_configs([resource], request_timeout=timeout_s)[resource],
            self._clients,
            f"read the settings of topic {name}",
            needs="DescribeConfigs",
            topic=name,
        )
        config = {entry.name: entry.value for entry in entries.values()}
        kept_ms = int(config.get("retention.ms") or -1)
        return None if kept_ms < 0 or "delete" not in (config.get("cleanup.policy") or "delete") else kept_ms
