"""A materialisation in processes of its own, killed at a fault point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import kpipe_platform
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform_tests.processes import descendant_groups, wait_until

from .conftest import Orders


def kill_at(place: str, orders: Orders, broker: EmbeddedBroker, folder: Path, **how: int) -> None:
    """Materialise partition 0 and kill driver, JVM and workers by SIGKILL when the place is reached.

    Args:
        place: A fault of ``kpipe_platform_tests/faultpoints``.
        orders: The topics.
        broker: Where they are.
        folder: For files.
        how: As for `hanging_at`.
    """
    with hanging_at(place, orders, broker, folder, **how):
        pass


@contextmanager
def hanging_at(
    place: str, orders: Orders, broker: EmbeddedBroker, folder: Path, *, after: int = 0, parts: int = 1
) -> Iterator[subprocess.Popen[bytes]]:
    """A materialisation of partition 0 that hangs at the place; whatever is left of it in the end is killed.

    Args:
        place: A fault of ``kpipe_platform_tests/faultpoints``.
        orders: The topics.
        broker: Where they are.
        folder: For files.
        after: Pass the place so many times first.
        parts: Parts of the slice that are written at the same time.
    """
    root = Path(kpipe_platform.__file__).parent.parent
    reached = folder / "reached"
    with (folder / "stderr").open("wb") as stderr:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kpipe_platform_tests.io_managers.materialise_orders",
                broker.bootstrap_servers,
                orders.source,
                orders.target,
                orders.manager.source.group_prefix,
                str(parts),
            ],
            cwd=root,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={
                # Spark marks the environment of a process that is attached to a server.
                **{name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"},
                "PYTHONPATH": os.pathsep.join([str(root / "kpipe_platform_tests" / "faultpoints"), str(root)]),
                "KPIPE_FAULT": place,
                "KPIPE_FAULT_AFTER": str(after),
                "KPIPE_FAULT_FILE": str(reached),
            },
        )
    try:
        wait_until(lambda: reached.exists() or child.poll() is not None, place, 240)
        assert reached.exists(), (folder / "stderr").read_text()[-3000:]
        yield child
    finally:
        # The driver, its JVM and the Python workers are one session, known by its id.
        for group in {child.pid, *descendant_groups(child.pid)}:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        child.wait(30)
