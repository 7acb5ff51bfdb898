"""What comes after a slice: a table of progress and time. No broker, no Spark and no thread."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform.slices.run.schedule import Progress, after_slice, next_action
from kpipe_platform.slices.settings import RunLimits

CAUGHT_UP = {"max_slices": None}
FOLLOWS = {"max_slices": None, "linger_s": 10}


def progress(**changes: Any) -> Progress:
    return Progress(**{"began_s": 100.0, "slices": 1, **changes})


@pytest.mark.parametrize(
    ("limits", "now", "after", "action"),
    [
        ({}, 101, {}, "finish"),
        ({}, 101, {"has_backlog": True}, "finish"),
        # An empty slice is none of those that are limited.
        ({}, 101, {"slices": 0, "has_backlog": True}, "take"),
        ({"max_slices": 3}, 101, {"slices": 2, "has_backlog": True}, "take"),
        ({"max_slices": 3}, 101, {"slices": 3, "has_backlog": True}, "finish"),
        ({"max_slices": 3}, 101, {"slices": 2}, "finish"),
        (CAUGHT_UP, 101, {"slices": 10**6, "has_backlog": True}, "take"),
        (CAUGHT_UP, 101, {"slices": 10**6}, "finish"),
        ({**CAUGHT_UP, "max_duration_s": 5}, 104.9, {"has_backlog": True}, "take"),
        ({**CAUGHT_UP, "max_duration_s": 5}, 105, {"has_backlog": True}, "finish"),
        (FOLLOWS, 10**9, {"has_backlog": True}, "take"),
        (FOLLOWS, 119.9, {"quiet_since_s": 110}, "wait"),
        (FOLLOWS, 120, {"quiet_since_s": 110}, "finish"),
        ({**FOLLOWS, "max_duration_s": 5}, 104.9, {"quiet_since_s": 104}, "wait"),
        ({**FOLLOWS, "max_duration_s": 5}, 105, {"quiet_since_s": 104}, "finish"),
        ({**FOLLOWS, "max_slices": 2}, 101, {"slices": 2, "quiet_since_s": 101}, "finish"),
    ],
)
def test_next_action(limits: dict[str, Any], now: float, after: dict[str, Any], action: str) -> None:
    assert next_action(progress(**after), RunLimits(**limits), now) == action


@pytest.mark.parametrize(
    ("quiet", "records", "backlog", "expected"),
    [
        # A backlog is not quiet, and its end begins the wait.
        (None, 5, True, None),
        (None, 5, False, 150),
        (None, 0, False, 150),
        # Records begin the wait anew; a slice of markers only, or none, does not.
        (110, 5, False, 150),
        (110, 0, False, 110),
        (110, 5, True, 110),
    ],
)
def test_the_wait_begins_after_the_last_records(
    quiet: float | None, records: int, backlog: bool, expected: float | None
) -> None:
    after, action = after_slice(
        progress(quiet_since_s=quiet),
        RunLimits(None, linger_s=60),
        is_empty=not records,
        records=records,
        has_backlog=backlog,
        now_s=150,
    )
    assert after == progress(slices=1 + bool(records), has_backlog=backlog, quiet_since_s=expected)
    assert action == ("take" if backlog else "wait")
