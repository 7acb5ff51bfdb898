"""Free ports of the loopback interface."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from kpipe_platform.errors import EnvironmentSetupError

__all__ = ["LOOPBACK", "established", "free_port", "free_ports", "is_free"]

LOOPBACK = "127.0.0.1"

_LOWEST = 15_000
# By default, Linux assigns ports from 32768 and macOS from 49152 to outgoing connections.
_DEFAULT_EPHEMERAL_START = 32_768
# Code of the ESTABLISHED state in the kernel's connection tables.
_ESTABLISHED = "01"


def free_ports(count: int, *, rng: random.Random | None = None) -> list[int]:
    """Find different ports that are free at this moment.

    The ports are below the system's range for outgoing connections. Otherwise, while a server restarts, the system
    could assign its port to a client that is trying to reconnect.

    The ports are not reserved: if a port is taken when the server starts, the caller must request another one.

    Args:
        count: Number of ports.
        rng: Random number generator for the choice; the system's generator by default.

    Returns:
        The ports, all different.

    Raises:
        EnvironmentSetupError: Not enough ports are free.
    """
    rng = rng or random.SystemRandom()
    candidates = list(range(_LOWEST, max(_ephemeral_start(), _LOWEST + 5_000)))
    rng.shuffle(candidates)
    ports: list[int] = []
    with ExitStack() as held:
        for port in candidates:
            if len(ports) == count:
                break
            listener = _bind(port)
            if listener is not None:
                held.enter_context(listener)
                ports.append(port)
    if len(ports) < count:
        msg = f"Only {len(ports)} of {count} needed ports are free on {LOOPBACK}."
        raise EnvironmentSetupError(msg, fix="stop servers that you do not need")
    return ports


def free_port() -> int:
    """Find one port that is free at this moment; see `free_ports`."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    listener = _bind(port)
    if listener is None:
        return False
    listener.close()
    return True


def established(port: int) -> int | None:
    """Count the established connections on a local server's port; None on systems without ``/proc/net/tcp``."""
    count, end = 0, f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            return None
        for line in lines:
            _, local, _, state, *_ = line.split()
            count += local.endswith(end) and state == _ESTABLISHED
    return count


def _bind(port: int) -> socket.socket | None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Same option as the JVM: ports in TIME_WAIT count as free, ports with a listener do not.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(1)
    except OSError:
        listener.close()
        return None
    return listener


def _ephemeral_start() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        return int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return _DEFAULT_EPHEMERAL_START
