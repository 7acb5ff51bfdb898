"""Everything that can be killed is killed, in an order that a seed decides, while orders keep coming.

Left out of the usual run: ``make chaos`` runs it, for as many minutes as one likes.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random, randrange

import pytest

from examples.flights.reading import await_settled
from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.records import consume
from kpipe_platform_tests.each_once import assert_each_once

from .deeds import Deeds
from .feeding import Feeder
from .runner import DEAD_LETTERS, GROUP, SOURCE, TARGET, manager_of
from .runners import Runner

MINUTES = float(os.environ.get("KPIPE_CHAOS_MINUTES") or 5)
SEED = int(os.environ.get("KPIPE_CHAOS_SEED") or randrange(1_000_000))

# A new process starts Python, Java and Spark, beside three brokers; a transaction that nobody ends is ended after a
# minute.
_PROGRESS_S = 240.0
_CAUGHT_UP_S = 600.0

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(MINUTES * 60 + 2_400),
]

Tell = Callable[[str], None]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    began = time.monotonic()

    def line(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"{time.monotonic() - began:6.0f} s  {text}\n")
            sys.stdout.flush()

    return line


def test_every_record_is_there_once_whatever_is_killed(brokers: EmbeddedBroker, tmp_path: Path, tell: Tell) -> None:
    servers = brokers.bootstrap_servers
    random = Random(SEED)
    done: Counter[str] = Counter()
    tell(f"{MINUTES:g} minutes with seed {SEED}: CHAOS_SEED={SEED} brings the same deeds in the same order")
    with runners(servers, tmp_path) as (runner, other):

        def await_progress() -> None:
            await_offsets(servers, runner)

        deeds = Deeds(brokers, runner, other, random, await_progress)
        end = time.monotonic() + MINUTES * 60
        with Feeder(servers, Random(SEED)) as feeder:
            while time.monotonic() < end:
                await_progress()
                time.sleep(random.uniform(0, 3))
                name = random.choice(list(deeds.all))
                tell(name)
                keep_running(runner)
                deeds.all[name]()
                done[name] += 1
            await_progress()
        tell(f"{feeder.sent:,} orders were sent; now the rest of them, undisturbed")
        if runner.is_running:
            runner.terminate()
        runner.start("finish")
        runner.wait(_CAUGHT_UP_S)
        assert [*runner.problems, *other.problems] == []
        runner.assert_nothing_left()
        other.assert_nothing_left()
        said = runner.said() + other.said()

    await_settled(ConnectionSettings(bootstrap_servers=servers), [SOURCE, TARGET, DEAD_LETTERS])
    source, outputs, letters = (consume(servers, topic) for topic in (SOURCE, TARGET, DEAD_LETTERS))
    assert len(source) == feeder.sent
    written, dead = assert_each_once(source, outputs, letters)
    for record in source:
        place = (record.partition, record.offset)
        if place in dead:
            assert record.key == b"bad"
        else:
            found, sent = written[place].json(), record.json()
            assert (found["id"], found["amount"]) == (sent["id"], sent["amount"] * 2)
            assert written[place].key == record.key
    assert not any(manager_of(servers).source.lag(GROUP, SOURCE).values())
    written_again = len(consume(servers, TARGET, isolation="read_uncommitted")) - len(outputs)
    tell(
        f"{len(outputs):,} outputs and {len(letters):,} dead letters, each once; {written_again:,} outputs were aborted"
    )
    tell(f"deeds: {listed(done)}")
    tell(f"runs: {listed(said)}")


@contextmanager
def runners(servers: str, folder: Path) -> Iterator[tuple[Runner, Runner]]:
    """Two runners, of which none is left in the end."""
    both = Runner("first", servers, folder), Runner("second", servers, folder)
    try:
        yield both
    finally:
        for each in both:
            each.close()


def keep_running(runner: Runner) -> None:
    if not runner.is_running:
        runner.start()


def await_offsets(servers: str, runner: Runner) -> None:
    """Wait until the group's offsets move; a runner that ends meanwhile is started again, as Dagster's sensor would."""
    source = manager_of(servers).source
    end = time.monotonic() + _PROGRESS_S
    before: int | None = None
    while True:
        keep_running(runner)
        try:
            found = source.committed(GROUP, SOURCE).values()
            now = sum(0 if offset is None else offset.offset for offset in found)
        except KpipeError:
            # A broker is away, or an offset is held by a transaction that is not decided.
            pass
        else:
            before = now if before is None else before
            if now > before:
                return
        assert time.monotonic() < end, f"no progress within {_PROGRESS_S:.0f} s\n{runner.errors()[-3_000:]}"
        time.sleep(0.2)


def listed(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.most_common())
