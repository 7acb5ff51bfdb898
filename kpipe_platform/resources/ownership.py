"""How a deployment shares the partitions of its topics with others."""

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
    """This deployment shares the partitions of its topics with others that have the same group.

    Sensors then request runs only for partitions that Kafka's group coordinator gave this deployment.
    ``PartitionScaling.rebalance_mode`` decides what happens to work on those that another deployment gets.

    Args:
        protocol: ``"classic"``, or ``"consumer"`` for KIP-848 (brokers 4.0 and later); the same in all deployments.
        instance_id: Name of this deployment, different in each: static membership, and the name in metadata, dead
            letters and output headers. None: every start is a new member, named after its host.
        session_timeout_s: How long a deployment that died, or cannot reach the brokers, keeps its partitions, seconds;
            with ``consumer`` the brokers decide that.
        drain_deadline_s: How long ``DRAIN_AND_YIELD`` waits for runs in flight, seconds.
        idle_timeout_s: A deployment whose sensor makes no ticks gives its partitions away after this long, seconds:
            a sensor that was turned off, or a daemon that stopped. At least three times the sensor's interval.

    Source: KIP-345, KIP-429, KIP-848.
    """

    protocol: Literal["classic", "consumer"] = Field(
        default="classic", description="Kafka's group protocol; consumer: KIP-848, brokers 4.0 and later"
    )
    instance_id: str | None = Field(
        default=None, min_length=1, description="name of this deployment for static membership and in metadata"
    )
    session_timeout_s: float = Field(
        default=10.0, ge=0.1, le=3600, description="how long a deployment that died keeps its partitions, seconds"
    )
    drain_deadline_s: float = Field(
        default=30.0, ge=0, le=80_000, description="how long a drain waits for runs in flight, seconds"
    )
    idle_timeout_s: float = Field(
        default=120.0, gt=0, description="without a tick for this long the partitions are given away, seconds"
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
        """This process's member for a group: made at the first call, found again by each later one.

        Args:
            connection: How to reach the brokers.
            group: Consumer group of the asset.
            topic: The topic whose partitions are shared.
            rebalance_mode: What happens to partitions that another deployment is to have.
            in_flight: Which of the given partitions have work in flight.
            listener: Called with every event.
            is_needed: Whether the member should stay in the group.

        Raises:
            ConfigError: A value makes no sense.
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
