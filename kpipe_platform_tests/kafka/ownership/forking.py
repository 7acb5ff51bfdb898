"""A process of its own that owns partitions and forks; each of the two prints who it is, as a line of JSON.

Forked from the test process, the child would inherit the locks of every Kafka client of other tests.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership

DEADLINE_S = 40.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            sys.exit("the condition did not come true")
        time.sleep(0.05)


def main(servers: str, group: str, topic: str, session_s: str) -> None:
    owner = ConsumerGroupOwnership(ConnectionSettings(servers), group, [topic], session_timeout_s=float(session_s))
    owner.start()
    until(lambda: len(owner.owned() or ()) == 6)
    seen, seeing = os.pipe()
    child = os.fork()
    until(lambda: len(owner.owned() or ()) == 3)
    said = {"member_id": owner.state().member_id, "worker": owner.worker, "pid": os.getpid()}
    # One write, so that the lines of the two do not mix.
    os.write(1, (json.dumps(said) + "\n").encode())
    if child:
        os.write(seeing, b".")
        os.waitpid(child, 0)
        until(lambda: len(owner.owned() or ()) == 6)
    else:
        # Stay until the parent has its half.
        os.read(seen, 1)
    owner.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
