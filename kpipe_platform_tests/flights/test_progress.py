from __future__ import annotations

import io
from functools import partial

import pytest
from rich.console import Console

from examples.flights.progress import PartitionProgress, StepDone, Steps
from examples.flights.run import RunResult
from examples.flights.summary import result_line, summary
from examples.flights.verify import Figures
from kpipe_platform.observability.events import PartitionEvent, PartitionEventKind, log_events


def _console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=120, color_system=None), stream


@pytest.mark.parametrize("terminal", [True, False])
def test_a_step_that_is_done_leaves_a_line_with_its_rate(terminal: bool) -> None:
    console, stream = _console(terminal=terminal)
    steps = Steps(console)
    with steps.step("Writing [flights]", total=10) as step:
        step.at(4)
        step.say("on it")
        step.add(6)
    with steps.step("Starting Spark"):
        pass
    assert [(done.name, done.records) for done in steps.done] == [("Writing [flights]", 10), ("Starting Spark", None)]
    lines = [line for line in stream.getvalue().splitlines() if "done" in line]
    assert "Writing [flights]" in lines[0]
    assert "10 records" in lines[0]
    assert "records/s" in lines[0]
    assert "records" not in lines[1]


def test_work_in_the_background_is_shown_with_its_own_duration() -> None:
    console, stream = _console(terminal=False)
    steps = Steps(console)
    with steps.step("Counting") as step:
        step.took(4.0)
        step.at(100)
    assert steps.done == [StepDone("Counting", 4.0, 100)]
    assert "25 records/s" in stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_partitions_of_a_run_are_shown_while_it_works(terminal: bool) -> None:
    console, stream = _console(terminal=terminal)
    event = partial(PartitionEvent, topic="flights", partition=2, start=0, end=1_200)
    with Steps(console).step("Materializing", total=2_000) as step, PartitionProgress(step):
        log_events([event(PartitionEventKind.STARTED)])
        assert "flights partition 2: offsets 0 to 1,200 planned" in stream.getvalue()
        assert step.records is None
        log_events([event(PartitionEventKind.COMPLETED, counts={"read": 1_199}), event(PartitionEventKind.FAILED)])
        assert "flights partition 2: 1,199 records committed" in stream.getvalue()
        assert step.records == 1_199
    log_events([event(PartitionEventKind.COMPLETED, counts={"read": 1})])
    assert step.records == 1_199


def test_a_step_that_fails_is_not_done() -> None:
    console, stream = _console(terminal=False)
    steps = Steps(console)
    with pytest.raises(ValueError, match="why"), steps.step("Starting Kafka"):
        raise ValueError("why")
    assert steps.done == []
    assert "done" not in stream.getvalue()


def test_the_last_line_is_for_programs() -> None:
    figures = Figures(
        records=336_776,
        enriched=328_521,
        dead_letters=8_255,
        lost=0,
        duplicated=0,
        reasons={("missing_field", "dep_time"): 8_255},
    )
    result = RunResult(figures, [], [StepDone("Writing", 2.0, 100), StepDone("Starting", 1.0)], 26, 93.44)
    assert result_line(result) == (
        "RESULT records=336776 enriched=328521 dead_letters=8255 lost=0 duplicated=0 seconds=93.4"
    )
    console, stream = _console(terminal=False)
    console.print(summary(result))
    text = stream.getvalue()
    assert "26 materializations" in text
    assert "8,255 dead letters: missing field dep_time" in text
    assert "50" in text
