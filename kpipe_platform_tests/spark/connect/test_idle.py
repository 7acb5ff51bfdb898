from __future__ import annotations

from kpipe_platform.spark.connect.idle import IdleSweep


class Server:
    def __init__(self) -> None:
        self.clients: int | None = 0
        self.now_s = 0.0
        self.cleared_at: list[float] = []
        self.sweep = IdleSweep(lambda: self.clients, lambda: self.cleared_at.append(self.now_s), lambda: self.now_s)

    def spend(self, seconds: int, clients: int | None) -> None:
        self.clients = clients
        for _ in range(seconds):
            self.now_s += 1
            self.sweep.look()


def test_what_clients_left_is_cleared_once_after_a_minute_and_a_half_without_any() -> None:
    server = Server()
    server.spend(10, clients=2)
    server.spend(90, clients=0)
    assert server.cleared_at == []
    server.spend(300, clients=0)
    assert server.cleared_at == [101.0]
    server.spend(1, clients=1)
    server.spend(300, clients=0)
    assert server.cleared_at == [101.0, 492.0]


def test_nothing_is_cleared_before_the_first_client_or_between_two_that_come_soon() -> None:
    server = Server()
    server.spend(300, clients=0)
    for _ in range(5):
        server.spend(2, clients=1)
        server.spend(80, clients=0)
    assert server.cleared_at == []


def test_nothing_is_cleared_where_the_clients_are_not_known() -> None:
    server = Server()
    server.spend(300, clients=None)
    assert server.cleared_at == []
