"""Names of a deployment and of its processes, for events, envelopes, headers and metadata."""

from __future__ import annotations

import os
import socket

INSTANCE_HEADER, WORKER_HEADER, LEASE_HEADER = "kpipe.instance", "kpipe.worker", "kpipe.lease"
"""Headers of an output whose source is known: who wrote it."""


def instance_name(instance_id: str | None = None) -> str:
    """Name of this deployment.

    Args:
        instance_id: The name that it was given; None: the host's.
    """
    return instance_id or socket.gethostname()


def worker_name(instance: str) -> str:
    """Name of this process within a deployment: ``pid-4711``, or ``host-1/pid-4711`` where that is no host's name.

    Args:
        instance: Name of the deployment.
    """
    host, process = socket.gethostname(), f"pid-{os.getpid()}"
    return process if instance == host else f"{host}/{process}"
