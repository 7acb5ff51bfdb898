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
# Linux hands out 32768 and up, macOS 49152 and up, for outgoing connections unless told otherwise.
_DEFAULT_EPHEMERAL_START = 32_768
# State of a connection in the kernel's tables.
_ESTABLISHED = "01"


def free_ports(count: int, *, rng: random.Random | None = None) -> list[int]:
    """Find different ports that nothing listens on at this moment.

    They come from below the system's range for outgoing connections. A server that is restarted on its port
    would otherwise sometimes find that a client, which kept trying to reconnect, had been given that very
    port as its own.

    Nothing reserves the ports: a server must be ready to find one taken, and then ask again.

    Args:
        count: How many.
        rng: Source of the choice; by default the system's.

    Returns:
        The ports, all different.

    Raises:
        EnvironmentSetupError: There are not that many free ports.
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
        raise EnvironmentSetupError(msg, fix="stop servers that are not needed")
    return ports


def free_port() -> int:
    """Find one port that nothing listens on at this moment; see `free_ports`."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Tell whether a server could listen on the port now."""
    listener = _bind(port)
    if listener is None:
        return False
    listener.close()
    return True


def established(port: int) -> int | None:
    """Count the connections that a server on this machine has on its port; None where only Linux would say."""
    found, end = 0, f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            return None
        for line in lines:
            _, local, _, state, *_ = line.split()
            found += local.endswith(end) and state == _ESTABLISHED
    return found


def _bind(port: int) -> socket.socket | None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # As the JVM does: ports in TIME_WAIT are free, ports that somebody listens on are not.
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
