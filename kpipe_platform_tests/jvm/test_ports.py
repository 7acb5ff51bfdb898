import random
import socket
from contextlib import closing

import pytest

from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.jvm import ports
from kpipe_platform.jvm.ports import LOOPBACK, free_port, free_ports, is_free


def test_ports_are_different_and_free() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(is_free(port) for port in found)


def test_ports_are_not_those_of_outgoing_connections() -> None:
    assert all(port < ports._ephemeral_start() for port in free_ports(50))


def test_a_port_that_is_listened_on_is_passed_over() -> None:
    seed = 7
    taken = free_ports(1, rng=random.Random(seed))[0]
    with closing(socket.create_server((LOOPBACK, taken))):
        assert not is_free(taken)
        assert free_ports(1, rng=random.Random(seed))[0] != taken
    assert is_free(taken)


def test_no_ports_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_bind", lambda port: None)
    with pytest.raises(EnvironmentSetupError, match="Only 0 of 1"):
        free_port()
