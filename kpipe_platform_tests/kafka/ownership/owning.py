"""A deployment in a process of its own: an owner that prints what it owns whenever that changes.

Usage, after python -m kpipe_platform_tests.kafka.ownership.owning:
SERVERS GROUP TOPIC PROTOCOL SESSION_TIMEOUT_S [INSTANCE_ID]

It ends when its standard input does, leaving the group in order.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import cast

from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.kafka.ownership.settings import OwnershipProtocol


def main(servers: str, group: str, topic: str, protocol: str, session_timeout_s: str, *instance: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with ConsumerGroupOwnership(
        ConnectionSettings(servers),
        group,
        [topic],
        protocol=cast(OwnershipProtocol, protocol),
        session_timeout_s=float(session_timeout_s),
        instance_id=instance[0] if instance else None,
    ) as ownership:
        told: object = ()
        while not over.wait(0.05):
            owned = ownership.owned()
            if owned != told:
                told = owned
                sys.stdout.write(json.dumps(None if owned is None else sorted(n for _, n in owned)) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
