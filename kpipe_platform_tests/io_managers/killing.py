"""Materializations that hang or are killed at a fault point: in processes of their own, or only their writers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._utils.interrupts import setup_interrupt_handlers
from pyspark.sql import SparkSession

import kpipe_platform
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.processes import descendant_groups, wait_until

from .conftest import Orders

ROOT = Path(kpipe_platform.__file__).parent.parent
FAULTS = os.pathsep.join([str(ROOT / "kpipe_platform_tests" / "faultpoints"), str(ROOT)])
"""For PYTHONPATH."""
INTERRUPTED = (DagsterExecutionInterruptedError, KeyboardInterrupt)
"""What a terminated run raises."""


@contextmanager
def fault(control: Path, place: str, folder: Path, *, killed: bool = False, after: int = 0) -> Iterator[Path]:
    """Meanwhile writers with this control file hang at a place, or are killed there by SIGKILL.

    Args:
        control: The file that ``KPIPE_FAULT_CONTROL`` names in their environment.
        place: A fault of ``kpipe_platform_tests/faultpoints``.
        folder: For files.
        killed: Kill them.
        after: Let so many pass first.

    Yields:
        The file that is there as soon as a writer was at the place; it holds its process id.
    """
    reached = folder / "reached"
    said = {"KPIPE_FAULT": place, "KPIPE_FAULT_FILE": str(reached), "KPIPE_FAULT_AFTER": str(after)}
    control.write_text(json.dumps({**said, "KPIPE_FAULT_KILLS": "1"} if killed else said))
    try:
        yield reached
    finally:
        control.unlink()


@contextmanager
def writers_at(
    place: str, spark: SparkSession, folder: Path, *, killed: bool = False, after: int = 0
) -> Iterator[Path]:
    """`fault` for the writers of runs in this process.

    Spark starts other Python workers for another environment, so no other test gets one of these. It tries the task of
    a killed worker again: it is killed at each try, and the run fails at the last.

    Args:
        place: As for `fault`.
        spark: A session of this process.
        folder: As for `fault`.
        killed: As for `fault`.
        after: As for `fault`.
    """
    # The same for all tests of this process, so that they share workers.
    control = Path(tempfile.gettempdir()) / f"kpipe-fault-{os.getpid()}.json"
    environment = spark.sparkContext.environment
    before = dict(environment)
    path = os.pathsep.join(filter(None, [FAULTS, before.get("PYTHONPATH")]))
    environment.update(PYTHONPATH=path, KPIPE_FAULT_CONTROL=str(control))
    try:
        with fault(control, place, folder, killed=killed, after=after) as reached:
            yield reached
    finally:
        environment.clear()
        environment.update(before)


def kill_at(place: str, orders: Orders, broker: EmbeddedBroker, folder: Path, **how: int) -> None:
    """Materialize partition 0 and kill driver, JVM and workers by SIGKILL when the place is reached.

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
    """Materialize partition 0 in a process that hangs at the given place. On exit, kill the process.

    Args:
        place: A fault of ``kpipe_platform_tests/faultpoints``.
        orders: The topics.
        broker: Where they are.
        folder: For files.
        after: Pass the place so many times first.
        parts: Parts of the slice that are written at the same time.
    """
    reached = folder / "reached"
    with (folder / "stderr").open("wb") as stderr:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kpipe_platform_tests.io_managers.materialize_orders",
                broker.bootstrap_servers,
                orders.source,
                orders.target,
                orders.manager.source.group_prefix,
                str(parts),
            ],
            cwd=ROOT,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={
                # Spark marks the environment of a process that is attached to a server.
                **{name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"},
                "PYTHONPATH": FAULTS,
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


@contextmanager
def terminated(when: Callable[[], None], signal_: signal.Signals) -> Iterator[list[float]]:
    """Send this process a signal when a function that a thread calls has returned; as to a run worker of Dagster's.

    Yields:
        A list that gets the moment of the signal.
    """
    sent: list[float] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def send() -> None:
        try:
            when()
        except BaseException as error:  # noqa: BLE001  # raised below, in the test's own thread
            failed.append(error)
        sent.append(time.monotonic())
        # A run that still goes on is ended either way: nobody else would.
        if not over.is_set():
            os.kill(os.getpid(), signal_)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    setup_interrupt_handlers()
    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield sent
    finally:
        over.set()
        sending.join(150)
        for each, handler in before.items():
            signal.signal(each, handler)
    if failed:
        raise failed[0]


@contextmanager
def foreign_job(session: SparkSession, folder: Path) -> Iterator[None]:
    """A Spark job of somebody else in the runs' session: it goes on as long as the block, and has to succeed."""
    begun, over = folder / "foreign-begun", folder / "foreign-over"
    rows: list[Any] = []

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        begun.touch()
        deadline = time.monotonic() + 240
        while not over.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield from batches

    job = threading.Thread(target=lambda: rows.extend(session.range(0, 3, 1, 1).mapInArrow(hold, "id long").collect()))
    job.start()
    try:
        wait_until(begun.exists, "the foreign job", 120)
        yield
    finally:
        over.touch()
        job.join(120)
    assert len(rows) == 3


def alive(pid: int) -> bool:
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"
