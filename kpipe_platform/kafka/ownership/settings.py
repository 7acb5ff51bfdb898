"""How a member takes part in an owners' group, and the librdkafka properties that say so.

Source: KIP-345 (static membership), KIP-429 (cooperative rebalancing), KIP-848 (the protocol ``consumer``),
librdkafka CONFIGURATION.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.settings import ConnectionSettings

OwnershipProtocol = Literal["classic", "consumer"]
"""``classic``: Kafka's older group protocol; ``consumer``: that of KIP-848, on brokers 4.0 and later."""

OwnershipRebalance = Literal["drain_and_yield", "stop_accepting_new_work_and_yield"]
"""What happens to partitions that another member is to have."""

# The member keeps its answer to the coordinator back while it drains. Past max.poll.interval.ms the coordinator
# would give its partitions away, so that is longer than the drain by this much, seconds.
_POLL_MARGIN_S = 30.0
# librdkafka's own bound of max.poll.interval.ms, seconds.
_POLL_MAX_S = 86_400.0
# How soon new partitions of a topic are seen, ms. librdkafka's default is five minutes.
_METADATA_REFRESH_MS = 5_000


@dataclass(frozen=True)
class OwnershipSettings:
    """How one deployment takes part in sharing the partitions of some topics.

    Args:
        connection: How to reach the brokers.
        group: The consumer group of the asset; the member joins ``{group}.owners``, never this group.
        topics: Topics whose partitions are shared.
        protocol: ``"classic"`` or ``"consumer"`` (KIP-848, brokers 4.0 and later).
        instance_id: Name of this deployment for static membership: restarted under the same name within the
            session timeout it finds its partitions as they were. No two running deployments may have the same.
            None: every start is a new member.
        session_timeout_s: With ``classic``, how long member and coordinator do without an answer of the other before
            the member's partitions are another's, seconds. With ``consumer`` the brokers decide that
            (``group.consumer.session.timeout.ms``, 45 s by default), and this has no effect.
        rebalance_mode: What happens when partitions are given to another deployment.
        drain_deadline_s: How long a drain waits for work in flight, seconds.

    Raises:
        ConfigError: A value makes no sense.
    """

    connection: ConnectionSettings
    group: str
    topics: tuple[str, ...]
    protocol: OwnershipProtocol = "classic"
    instance_id: str | None = None
    session_timeout_s: float = 10.0
    rebalance_mode: OwnershipRebalance = "drain_and_yield"
    drain_deadline_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.group:
            msg = "the group whose partitions are shared has no name"
            raise ConfigError(msg, fix="give the asset's consumer group", setting="group")
        if not self.topics or not all(self.topics):
            msg = f"there is no topic to share among the owners of group {self.group}"
            raise ConfigError(msg, fix="name at least one topic", setting="topics")
        _one_of("protocol", self.protocol, get_args(OwnershipProtocol))
        _one_of("rebalance_mode", self.rebalance_mode, get_args(OwnershipRebalance))
        if self.instance_id == "":
            msg = "instance_id is empty"
            raise ConfigError(msg, fix="name this deployment, or leave instance_id out", setting="instance_id")
        if not 0.1 <= self.session_timeout_s <= 3600:
            msg = f"session_timeout_s is {self.session_timeout_s:g}; it must be between 0.1 and 3600 seconds"
            raise ConfigError(msg, fix="set it to a number of seconds, for example 10", setting="session_timeout_s")
        longest = _POLL_MAX_S - _POLL_MARGIN_S - self.session_timeout_s
        if not 0 <= self.drain_deadline_s <= longest:
            msg = (
                f"drain_deadline_s is {self.drain_deadline_s:g}; it must be between 0 and {longest:g} seconds, because "
                f"Kafka's max.poll.interval.ms, which must be longer, ends at {_POLL_MAX_S * 1000:.0f} ms"
            )
            raise ConfigError(msg, fix="set it to a number of seconds, for example 30", setting="drain_deadline_s")

    @property
    def owners_group(self) -> str:
        """The side group that the member joins."""
        return f"{self.group}.owners"

    def consumer_config(self) -> dict[str, Any]:
        """Properties of the member's consumer, without callbacks. Contains secrets: never log it."""
        session_ms = int(self.session_timeout_s * 1000)
        config: dict[str, Any] = {
            **self.connection.for_librdkafka(),
            "group.id": self.owners_group,
            "group.protocol": self.protocol,
            "max.poll.interval.ms": int((self.drain_deadline_s + self.session_timeout_s + _POLL_MARGIN_S) * 1000),
            # Nothing is read and nothing is stored. Partitions are paused as soon as they are assigned; the rest
            # bounds what a fetch that was faster could bring: it begins at the log's end, and takes one small batch.
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest",
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": 1,
            "allow.auto.create.topics": False,
            "topic.metadata.refresh.interval.ms": _METADATA_REFRESH_MS,
        }
        if self.instance_id is not None:
            config["group.instance.id"] = self.instance_id
        if self.protocol == "classic":
            # With "consumer" these three are the brokers' decision, and librdkafka refuses them.
            config["session.timeout.ms"] = session_ms
            config["heartbeat.interval.ms"] = max(session_ms // 4, 1)
            config["partition.assignment.strategy"] = "cooperative-sticky"
        return config


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        msg = f"{name} is {value!r}, which is not one of {', '.join(known)}"
        raise ConfigError(msg, fix=f"set {name} to one of these values", setting=name)
