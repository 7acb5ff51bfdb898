"""Configuration for sharing the partitions of topics with other deployments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.ownership.events import InFlight, Listener
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.kafka.ownership.registry import ownership_of
from kpipe_platform.resources.known_names import KnownNames
from kpipe_platform.resources.scaling import RebalanceMode


class PartitionOwnership(KnownNames):
    """Share the partitions of topics with other deployments that have the same consumer group.

    Sensors then request runs only for partitions that Kafka's group coordinator assigned to this deployment.
    ``PartitionScaling.rebalance_mode`` decides what happens to runs in flight when a partition moves to another
    deployment.

    Args:
        protocol: ``"classic"``, or ``"consumer"`` for KIP-848 (brokers 4.0 and later); the same in all deployments.
        instance_id: Unique name of this deployment. It is used for static membership, and as the name in metadata, dead
            letters and output headers. None: each start creates a new member, named after its host.
        session_timeout_s: Time that a deployment keeps its partitions after it died or lost the connection to the
            brokers, seconds. With ``consumer``, the brokers' setting applies instead.
        drain_deadline_s: Maximum time that ``DRAIN_AND_YIELD`` waits for runs in flight, seconds.
        idle_timeout_s: Time without sensor ticks after which a deployment gives up its partitions, seconds. Ticks end
            if the sensor is turned off or the daemon stops. The effective minimum is three times the sensor's interval.

    Source: KIP-345, KIP-429, KIP-848.
    """

    protocol: Literal["classic", "consumer"] = Field(
        default="classic", description="Kafka's group protocol; consumer: KIP-848, brokers 4.0 and later"
    )
    instance_id: str | None = Field(
        default=None, min_length=1, description="name of this deployment for static membership and in metadata"
    )
    session_timeout_s: float = Field(
        default=10.0, ge=0.1, le=3600, description="time that a deployment keeps its partitions after it died, seconds"
    )
    drain_deadline_s: float = Field(
        default=30.0, ge=0, le=80_000, description="maximum time that a drain waits for runs in flight, seconds"
    )
    idle_timeout_s: float = Field(
        default=120.0, gt=0, description="time without sensor ticks after which the partitions are given up, seconds"
    )

    def member(
        self,
        connection: ConnectionSettings,
        group: str,
        topic: str,
        *,
        rebalance_mode: RebalanceMode = RebalanceMode.DRAIN_AND_YIELD,
        in_flight: InFlight | None = None,
        listener: Listener | None = None,
        is_needed: Callable[[], bool] | None = None,
    ) -> ConsumerGroupOwnership:
        """Return this process's member for a group. The first call creates it; later calls return the same member.

        Args:
            connection: Connection settings.
            group: Consumer group of the asset.
            topic: The topic whose partitions are shared.
            rebalance_mode: What happens to partitions that move to another deployment.
            in_flight: Returns those of the given partitions that have work in flight.
            listener: Called with each event.
            is_needed: Returns whether the member should stay in the group.

        Raises:
            ConfigError: A value is invalid.
        """
        return ownership_of(
            ConsumerGroupOwnership(
                connection,
                group,
                [topic],
                protocol=self.protocol,
                instance_id=self.instance_id,
                session_timeout_s=self.session_timeout_s,
                rebalance_mode=rebalance_mode.value,
                drain_deadline_s=self.drain_deadline_s,
                in_flight=in_flight,
                listener=listener,
                is_needed=is_needed,
            )
        )
