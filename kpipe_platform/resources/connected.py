"""Resources that need a connection to Kafka: their own, or that of the IO manager that contains them."""

# No postponed annotations here: Dagster reads the type of a resource dependency when it creates the class.

from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.resources._compat import PartialResource
from kpipe_platform.resources.connection import KafkaConnection
from kpipe_platform.resources.known_names import KnownNames, require_kind


class Connected(KnownNames, dg.ConfigurableResource):  # type: ignore[type-arg]
    """Base class of the resources that need a connection.

    Args:
        connection: Connection to the brokers; None: that of the ``KafkaIOManager`` that contains the resource.

    Raises:
        ConfigError: ``connection`` is not a ``KafkaConnection``.
    """

    connection: dg.ResourceDependency[KafkaConnection | None] = Field(
        default=None,  # type: ignore[arg-type]  # Dagster replaces the descriptor with the value
        description="connection to the brokers; None: that of the KafkaIOManager that contains the resource",
    )

    def __init__(self, **data: Any) -> None:
        require_kind(type(self), data, "connection", KafkaConnection)
        super().__init__(**data)

    @property
    def connection_settings(self) -> ConnectionSettings:
        """The checked settings of the connection, with environment variables read.

        Raises:
            ConfigError: The resource has no connection, or its connection is invalid.
        """
        name, connection = type(self).__name__, self.connection
        if connection is None:
            msg = f"{name} has no connection, and is not part of a KafkaIOManager with a connection"
            raise ConfigError(msg, fix=f"{name}(connection=KafkaConnection(bootstrap_servers=...), ...)")
        if not isinstance(connection, KafkaConnection):
            msg = f"the connection of {name} is configured at launch, so it is available only within a run or a tick"
            raise ConfigError(msg, fix=f"access {name}, or its KafkaIOManager, as a resource of a run or a tick")
        return connection.settings


def connect_parts(owner: type, data: Mapping[str, Any], parts: Mapping[str, type[Connected]]) -> dict[str, Any]:
    """Return the arguments of a resource, after passing its connection to the parts without their own.

    Called when the resource is defined, and again when Dagster has resolved its nested resources: a part that is
    configured at launch is not available earlier.

    Args:
        owner: Class of the resource.
        data: Its arguments.
        parts: Its parts by name, with their classes.

    Raises:
        ConfigError: A part has no connection, or is of another class.
    """
    require_kind(owner, data, "connection", KafkaConnection)
    connection, connected = data.get("connection"), dict(data)
    for name, kind in parts.items():
        require_kind(owner, data, name, kind)
        part = data.get(name)
        if isinstance(part, Connected):
            connected[name] = _connected_to(connection, part)
        own = part.data.get("connection") if isinstance(part, PartialResource) else getattr(part, "connection", None)
        if isinstance(part, Connected | PartialResource) and connection is None and own is None:
            msg = f"neither {owner.__name__} nor its {name} has a connection"
            fix = f"{owner.__name__}(connection=KafkaConnection(bootstrap_servers=...), ...)"
            raise ConfigError(
                msg, fix=f"{fix}; its parts use this connection unless they have their own", setting="connection"
            )
    return connected


def _connected_to(connection: Any, part: Connected) -> Connected:
    """Return a part with the connection, or unchanged if it has its own."""
    if connection is None or part.connection is not None:
        return part
    given = {name: value for name, value in part if name in part.model_fields_set}
    return type(part)(**{**given, "connection": connection})
