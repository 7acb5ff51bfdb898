"""Which dead letters are meant, and how what is done is remembered between those that are not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe_platform.dead_letters.read.filters import DeadLetterFilter, make_filter, parse_place
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.dead_letters.redrive.pace import Pace
from kpipe_platform.dead_letters.redrive.progress import ALWAYS_FIT, MAX_TEXT_BYTES, Progress
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.records import KafkaRecord

NOON_MS = 1_769_860_800_000
FOUND = FoundDeadLetter(
    dead_letter=KafkaRecord("orders.dlq", 2, 9, NOON_MS),
    family="kpipe",
    original=KafkaRecord("orders", 1, 42),
    exception_type="shop.codecs.DecodeFault",
    cause_type="builtins.ValueError",
    kind="wrong_type",
    rules=("positive_amount",),
    who="priced",
    dead_lettered_ms=NOON_MS,
)


@pytest.mark.parametrize(
    ("conditions", "is_taken"),
    [
        ({}, True),
        ({"topics": ["orders"]}, True),
        ({"topics": ["ord*", "x"]}, True),
        ({"topics": ["order"]}, False),
        ({"topics": ["ORDERS"]}, False),
        ({"partitions": [0, 1]}, True),
        ({"partitions": [2]}, False),
        ({"since": "2026-01-31T12:00:00Z"}, True),
        ({"since": "2026-01-31T12:00:00.001Z"}, False),
        ({"until": "2026-01-31T12:00:00Z"}, False),
        ({"until": "2026-01-31T12:00:00.001Z"}, True),
        ({"since": str(NOON_MS), "until": "2026-02-01"}, True),
        ({"exceptions": ["DecodeFault"]}, True),
        ({"exceptions": ["shop.codecs.DecodeFault"]}, True),
        ({"exceptions": ["*Fault"]}, True),
        ({"exceptions": ["ValueError"]}, True),
        ({"exceptions": ["codecs.DecodeFault"]}, False),
        ({"rules": ["wrong_type"]}, True),
        ({"rules": ["positive_*"]}, True),
        ({"rules": ["other"]}, False),
        ({"assets": ["priced"]}, True),
        ({"assets": ["pric"]}, False),
        ({"places": ["2@9"]}, True),
        ({"places": ["2@8", "1@9"]}, False),
        ({"topics": ["orders"], "assets": ["other"]}, False),
    ],
)
def test_every_condition_must_hold(conditions: dict[str, Any], is_taken: bool) -> None:
    assert make_filter(**conditions).takes(FOUND) is is_taken


def test_what_is_not_known_meets_no_condition() -> None:
    bare = FoundDeadLetter(KafkaRecord("dlq", 0, 0), "unknown", KafkaRecord())
    assert DeadLetterFilter().takes(bare)
    for conditions in (
        {"topics": ["*"]},
        {"partitions": [0]},
        {"since": "1970-01-01"},
        {"until": "2099-01-01"},
        {"exceptions": ["*"]},
        {"rules": ["*"]},
        {"assets": ["*"]},
    ):
        assert not make_filter(**conditions).takes(bare)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "conditions",
    [
        {"since": "yesterday"},
        {"until": "latest"},
        {"since": "2026-02-01", "until": "2026-01-01"},
        {"places": ["7"]},
        {"places": ["a@b"]},
    ],
)
def test_what_makes_no_sense_is_refused(conditions: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_filter(**conditions)
    assert caught.value.fix


def test_a_place() -> None:
    assert parse_place("3@17") == (3, 17)


@pytest.mark.parametrize(
    "options",
    [
        {"to_topic": "orders.dlq"},
        {"parking_topic": "orders.dlq"},
        {"max_attempts": 0},
        {"limit": 0},
        {"batch_records": 0},
        {"transaction_timeout_s": 0},
    ],
)
def test_options_that_would_do_nothing_or_never_end(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RedriveOptions("orders.dlq", **options)


# -------------------------------------------------------------------------------------------- progress


def test_the_offset_stays_before_what_was_passed_over() -> None:
    progress = Progress(10).advanced(10, [(10, True), (11, False), (12, True), (15, True), (16, False)], end=20)
    # 13 and 14 are gaps inside the run; 17 to 19 are markers behind the last record.
    assert progress == Progress(11, ((12, 16), (17, 20)))
    assert [offset for offset in range(8, 20) if not progress.is_done(offset)] == [11, 16]


def test_what_was_passed_over_closes_the_gap_later() -> None:
    progress = Progress(11, ((12, 16), (17, 20)))
    assert progress.advanced(11, [(11, True), (12, True), (15, True)]) == Progress(16, ((17, 20),))
    assert progress.advanced(11, [(11, True), (12, True), (15, True), (16, True)], end=30) == Progress(30)


def test_nothing_done_moves_nothing() -> None:
    assert Progress(3).advanced(3, [(3, False), (4, False)]) == Progress(3)
    assert Progress(3).advanced(3, [], end=9) == Progress(9)


def test_retention_ends_what_is_to_be_done() -> None:
    progress = Progress(10, ((12, 16), (18, 20)))
    assert progress.undone_before(19) == 10 + 9 - 10 - 4 - 1
    assert progress.from_log_start(17) == Progress(17, ((18, 20),))
    assert progress.from_log_start(18) == Progress(20)
    assert progress.from_log_start(5) == progress


@pytest.mark.parametrize("seed", range(20))
def test_progress_against_a_set(seed: int) -> None:
    """Reading in passes, each with its own choice: done is what was chosen once, and the text says the same."""
    rng = random.Random(seed)
    offsets = sorted(rng.sample(range(5_000), 400))
    progress, done = Progress(0), set()
    for _ in range(6):
        position = progress.frontier
        ahead = [offset for offset in offsets if offset >= position]
        while ahead:
            batch, ahead = ahead[:37], ahead[37:]
            done |= {offset for offset in batch if rng.random() < 0.3}
            progress = progress.advanced(position, [(o, o in done) for o in batch], end=None if ahead else 5_000)
            position = batch[-1] + 1
        assert [o for o in offsets if progress.is_done(o)] == [o for o in offsets if o in done]
        assert progress.frontier == next((o for o in offsets if o not in done), 5_000) or not progress.is_done(
            progress.frontier
        )
        text = progress.to_text("topic-id")
        assert Progress.from_text(progress.frontier, text) == (progress, "topic-id")


def test_the_text_holds_thousands_of_scattered_dead_letters_and_then_refuses() -> None:
    rng = random.Random(0)
    scattered = Progress(0).advanced(0, [(n, n > 0 and rng.random() < 0.5) for n in range(8_000)])
    assert len(scattered.to_text("an-id-of-22-characters")) <= MAX_TEXT_BYTES
    regular = Progress(0).advanced(0, [(n, n % 2 == 1) for n in range(300_000)])
    assert len(regular.to_text("an-id-of-22-characters")) <= MAX_TEXT_BYTES
    crowd = Progress(0).advanced(0, [(n, n > 0 and rng.random() < 0.5) for n in range(100_000)])
    with pytest.raises(ConfigError, match="skips too many") as caught:
        crowd.to_text("an-id-of-22-characters")
    assert caught.value.frontier == 0


@pytest.mark.parametrize("one_in", [2, 3, 10, 100])
def test_the_text_holds_two_thousand_dead_letters_scattered_as_thinly_as_one_in_a_hundred(one_in: int) -> None:
    """What docs/guides/redrive.md says."""
    rng = random.Random(one_in)
    done = set(rng.sample(range(1, 2_000 * one_in), 2_000))
    progress = Progress(0).advanced(0, [(n, n in done) for n in range(2_000 * one_in)])
    assert len(progress.to_text("an-id-of-22-characters")) <= MAX_TEXT_BYTES


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_the_text_holds_whatever_is_done_of_few_offsets(seed: int, share: float) -> None:
    rng = random.Random(seed)
    progress = Progress(7).advanced(7, [(7 + n, rng.random() < share) for n in range(ALWAYS_FIT)])
    assert len(progress.to_text("an-id-of-22-characters")) <= MAX_TEXT_BYTES


def test_text_of_others_names_nothing_that_is_done() -> None:
    moved = CommitMetadata("topic-id", "kpipe-cli", "s", "u", 0, SliceCounts()).to_text()
    assert Progress.from_text(5, moved) == (Progress(5), "topic-id")
    for text in (None, "", "not JSON", "[]", '{"kpipe_redrive":9}', '{"kpipe_redrive":1,"done":"!","topic_id":"x"}'):
        assert Progress.from_text(5, text) == (Progress(5), None)


# ------------------------------------------------------------------------------------------------ pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_pace_spaces_batches() -> None:
    clock = Clock()
    pace = Pace(10, clock=clock, sleep=clock.sleep)
    assert [pace.batch(n) for n in (500, 3)] == [10, 3]
    for records in (10, 10, 5, 5):
        pace.wait(records)
    assert clock.slept == pytest.approx([1.0, 1.0, 0.5])
    clock.now += 60
    pace.wait(10)
    # Time that passed unused is not saved up.
    pace.wait(10)
    assert clock.slept[3:] == pytest.approx([1.0])


def test_a_pace_below_one_a_second() -> None:
    clock = Clock()
    pace = Pace(0.1, clock=clock, sleep=clock.sleep)
    assert pace.batch(500) == 1
    pace.wait(1)
    pace.wait(0)
    pace.wait(1)
    assert clock.slept == pytest.approx([10.0])


def test_no_pace() -> None:
    clock = Clock()
    pace = Pace(None, clock=clock, sleep=clock.sleep)
    assert pace.batch(500) == 500
    pace.wait(500)
    pace.wait(500)
    assert clock.slept == []
    with pytest.raises(ConfigError):
        Pace(0)
