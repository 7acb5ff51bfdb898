"""What a step tells when its work is cut off: no broker and no Spark."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator

import dagster as dg
import pytest

from kpipe_platform.io_managers.partition_events import StepEvents
from kpipe_platform.io_managers.step import Step
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.slices.report import SliceReport

KEY = dg.AssetKey("a")


def slice_of(partition: int, start: int, end: int) -> Slice:
    planned = PlannedRange(OffsetRange("orders", partition, start, end), "id", 0, end, start)
    return Slice("kpipe.a", "run", "slice", (planned,))


def report_of(taken: Slice, read: int) -> SliceReport:
    return SliceReport(taken, [SliceCounts(read=read, written=read)])


@pytest.fixture
def step() -> Iterator[Step]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Step(KEY, "kpipe.a", "run", "a", 1, ("0", "1"), instance)


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kpipe_platform.observability.events")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    events = [json.loads(record.getMessage()) for record in caplog.records]
    return [(e["event"], e["partition"], e.get("start"), e.get("end"), e.get("reason")) for e in events]


def test_what_was_begun_when_the_step_is_terminated_has_failed_once(
    step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    events = StepEvents(step, ["orders"], None)
    working, waiting = events.watch([0]), events.watch([1])
    working.planned(slice_of(0, 0, 8))
    working.done(report_of(slice_of(0, 0, 3), 3))
    events.close("the run was terminated")
    # A thread that notices later has nothing to add; nor has one that never began.
    working.ended("job canceled")
    waiting.planned(slice_of(1, 0, 5))
    assert told(caplog) == [
        ("started", 0, 0, 8, None),
        ("failed", 0, 3, 8, "the run was terminated"),
        ("started", 1, 0, 5, None),
    ]


def test_a_step_that_fails_before_it_begins_fails_for_all_its_partitions(
    step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    StepEvents(step, ["orders"], None).close("no such topic")
    assert told(caplog) == [("failed", n, None, None, "no such topic") for n in (0, 1)]


def test_a_plan_that_is_refused_after_a_slice_tells_what_was_done(step: Step, caplog: pytest.LogCaptureFixture) -> None:
    watch = StepEvents(step, ["orders"], None).watch([0])
    watch.planned(slice_of(0, 0, 3))
    watch.done(report_of(slice_of(0, 0, 3), 2))
    watch.ended("lost range")
    assert told(caplog) == [("started", 0, 0, 3, None), ("failed", 0, None, None, "lost range")]
    assert json.loads(caplog.records[1].getMessage())["read"] == 2


def test_an_attempt_that_is_made_again_is_no_second_start(step: Step, caplog: pytest.LogCaptureFixture) -> None:
    watch = StepEvents(step, ["orders"], None).watch([0])
    watch.planned(slice_of(0, 0, 3))
    watch.planned(slice_of(0, 0, 4))
    watch.done(report_of(slice_of(0, 0, 4), 4))
    watch.ended()
    assert told(caplog) == [("started", 0, 0, 3, None), ("completed", 0, 0, 4, None)]


def test_observations_are_stored_in_the_thread_that_asks_for_them(step: Step) -> None:
    stored: list[tuple[str | None, int]] = []
    events = StepEvents(step, ["orders"], lambda o: stored.append((o.partition, threading.get_ident())))
    worker = threading.Thread(target=lambda: events.watch([1]).planned(slice_of(1, 0, 3)))
    worker.start()
    worker.join()
    assert stored == []
    events.deliver()
    assert stored == [("1", threading.get_ident())]


def test_a_storage_that_fails_does_not_fail_the_run(step: Step, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: dg.AssetObservation) -> None:
        msg = "full"
        raise OSError(msg)

    events = StepEvents(step, ["orders"], refuse)
    events.watch([0]).planned(slice_of(0, 0, 3))
    events.deliver()
    assert "cannot store an observation of asset a" in caplog.text
