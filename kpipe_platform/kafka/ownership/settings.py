"""Settings of a member of an owners' group, and the librdkafka properties for them.

Source: KIP-345 (static membership), KIP-429 (cooperative rebalancing), KIP-848 (the ``consumer`` protocol),
librdkafka CONFIGURATION.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.settings import ConnectionSettings

OwnershipProtocol = Literal["classic", "consumer"]
"""``classic``: Kafka's older group protocol; ``consumer``: the KIP-848 protocol, on brokers 4.0 and later."""

OwnershipRebalance = Literal["drain_and_yield", "stop_accepting_new_work_and_yield"]
"""What happens to partitions that are reassigned to another member."""

# While it drains, a member delays its response to the coordinator. After max.poll.interval.ms the coordinator would
# reassign its partitions, so that interval is longer than the drain by this margin, seconds.
_POLL_MARGIN_S = 30.0
# librdkafka's upper limit of max.poll.interval.ms, seconds.
_POLL_MAX_S = 86_400.0
# Interval at which new partitions of a topic are detected, milliseconds. librdkafka's default is five minutes.
_METADATA_REFRESH_MS = 5_000


@dataclass(frozen=True)
class OwnershipSettings:
    """Settings with which one deployment shares the partitions of some topics.

    Args:
        connection: Connection settings.
        group: The consumer group of the asset; the member joins ``{group}.owners``, never this group.
        topics: Topics whose partitions are shared.
        protocol: ``"classic"`` or ``"consumer"`` (KIP-848, brokers 4.0 and later).
        instance_id: Name of this deployment for static membership. A deployment that restarts under the same name
            within the session timeout keeps its partitions. Two running deployments must not use the same name.
            None makes each start a new member.
        session_timeout_s: With ``classic``, how long member and coordinator wait for each other before the member's
            partitions are reassigned, seconds. With ``consumer``, the brokers decide this
            (``group.consumer.session.timeout.ms``, 45 s by default), and this setting has no effect.
        rebalance_mode: What happens when partitions are reassigned to another deployment.
        drain_deadline_s: How long a drain waits for work in flight, seconds.

    Raises:
        ConfigError: A value is invalid.
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
            msg = "group is empty"
            raise ConfigError(msg, fix="set group to the asset's consumer group", setting="group")
        if not self.topics or not all(self.topics):
            msg = f"topics is empty or contains an empty name (group {self.group})"
            raise ConfigError(msg, fix="list at least one topic", setting="topics")
        _one_of("protocol", self.protocol, get_args(OwnershipProtocol))
        _one_of("rebalance_mode", self.rebalance_mode, get_args(OwnershipRebalance))
        if self.instance_id == "":
            msg = "instance_id is empty"
            raise ConfigError(msg, fix="set it to a name of this deployment, or omit it", setting="instance_id")
        if not 0.1 <= self.session_timeout_s <= 3600:
            msg = f"session_timeout_s is {self.session_timeout_s:g}; it must be between 0.1 and 3600 seconds"
            raise ConfigError(msg, fix="set it to a number of seconds, for example 10", setting="session_timeout_s")
        longest = _POLL_MAX_S - _POLL_MARGIN_S - self.session_timeout_s
        if not 0 <= self.drain_deadline_s <= longest:
            msg = (
                f"drain_deadline_s is {self.drain_deadline_s:g}; it must be between 0 and {longest:g} seconds, because "
                f"Kafka limits max.poll.interval.ms, which must be longer, to {_POLL_MAX_S * 1000:.0f} ms"
            )
            raise ConfigError(msg, fix="set it to a number of seconds, for example 30", setting="drain_deadline_s")

    @property
    def owners_group(self) -> str:
        """The side group that the member joins."""
        return f"{self.group}.owners"

    def consumer_config(self) -> dict[str, Any]:
        """Return properties of the member's consumer, without callbacks. They contain secrets: never log them."""
        session_ms = int(self.session_timeout_s * 1000)
        config: dict[str, Any] = {
            **self.connection.for_librdkafka(),
            "group.id": self.owners_group,
            "group.protocol": self.protocol,
            "max.poll.interval.ms": int((self.drain_deadline_s + self.session_timeout_s + _POLL_MARGIN_S) * 1000),
            # Partitions are paused as soon as they are assigned, and no offsets are stored. The other settings limit a
            # fetch that starts before the pause: it starts at the log end and returns one small batch.
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
            # With "consumer", the brokers decide these three, and librdkafka refuses them.
            config["session.timeout.ms"] = session_ms
            config["heartbeat.interval.ms"] = max(session_ms // 4, 1)
            config["partition.assignment.strategy"] = "cooperative-sticky"
        return config


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        msg = f"{name} is {value!r}; it must be one of {', '.join(known)}"
        raise ConfigError(msg, fix=f"set {name} to one of these values", setting=name)
