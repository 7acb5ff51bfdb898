"""Names of a deployment and its processes, for events, envelopes, headers and metadata."""

from __future__ import annotations

import os
import socket

INSTANCE_HEADER, WORKER_HEADER, LEASE_HEADER = "kpipe.instance", "kpipe.worker", "kpipe.lease"
"""Headers that name the writer of an output record, when its source record is known."""


def instance_name(instance_id: str | None = None) -> str:
    """Return the name of this deployment.

    Args:
        instance_id: Configured name; None for the host name.
    """
    return instance_id or socket.gethostname()


def worker_name(instance: str) -> str:
    """Return the name of this process: ``pid-4711``, or ``host-1/pid-4711`` if the deployment is not named by host.

    Args:
        instance: Name of the deployment.
    """
    host, process = socket.gethostname(), f"pid-{os.getpid()}"
    return process if instance == host else f"{host}/{process}"
