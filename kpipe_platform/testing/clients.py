"""Client configuration of the test helpers. Independent of kpipe's own Kafka clients, which are tested with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Client", "client_config"]

Client = str | Mapping[str, Any]
"""Bootstrap servers, or a complete librdkafka configuration (for SASL and TLS)."""


def client_config(client: Client, **defaults: Any) -> dict[str, Any]:
    """Return a configuration for a short-lived client of a local broker.

    Args:
        client: Bootstrap servers or a configuration, which overrides the defaults.
        **defaults: Properties with underscores instead of dots.

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
