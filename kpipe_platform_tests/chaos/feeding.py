"""Orders that keep coming, also while brokers are away."""

from __future__ import annotations

import threading
from random import Random
from types import TracebackType

from confluent_kafka import Producer

from kpipe_platform_tests.io_managers.conftest import BAD, order

from .runner import PARTITIONS, SOURCE

# Most slices are small; now and then there is one that is cached.
_BURSTS = (1, 20, 300, 300, 300, 300, 300, 300, 300, 12_000)
_ONE_IN = 100
_PAUSE_S = 1.0
_DELIVERED_S = 300


class Feeder:
    """Writes orders to every partition, one in a hundred of them broken, until it is closed.

    Args:
        servers: The brokers.
        random: Decides how many come at once.
    """

    def __init__(self, servers: str, random: Random) -> None:
        self._random = random
        self._over = threading.Event()
        self._problems: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="feeder")
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "message.timeout.ms": _DELIVERED_S * 1_000,
                "log_level": 0,
            }
        )
        self.sent = 0

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, once all that was sent is acknowledged.

        Raises:
            AssertionError: Something was not.
        """
        self._over.set()
        self._thread.join(_DELIVERED_S + 30)
        assert not self._thread.is_alive()
        if self._problems:
            raise self._problems[0]

    def _run(self) -> None:
        try:
            while not self._over.wait(_PAUSE_S):
                for _ in range(self._random.choice(_BURSTS)):
                    self._send()
                assert self._producer.flush(_DELIVERED_S) == 0
        except BaseException as error:  # noqa: BLE001  # raised by `close`
            self._problems.append(error)

    def _send(self) -> None:
        record = BAD if self._random.randrange(_ONE_IN) == 0 else order(self.sent)
        self._producer.produce(SOURCE, record["value"], record["key"], self._random.randrange(PARTITIONS))
        self._producer.poll(0)
        self.sent += 1
