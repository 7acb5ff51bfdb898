"""What the test helpers share about Kafka clients. They use none of kpipe's own Kafka code: they check it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Client", "client_config"]

Client = str | Mapping[str, Any]
"""Bootstrap servers, or a whole librdkafka configuration (for SASL and TLS)."""


def client_config(client: Client, **defaults: Any) -> dict[str, Any]:
    """Render a configuration for a short-lived client of a local broker.

    Args:
        client: Bootstrap servers or a configuration, which wins over the defaults.
        **defaults: Properties with underscores for dots.

    Returns:
        A librdkafka configuration that logs nothing and reconnects at once.
    """
    given = {"bootstrap.servers": client} if isinstance(client, str) else dict(client)
    return {
        "log_level": 0,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        **{name.replace("_", "."): value for name, value in defaults.items()},
        **given,
    }
