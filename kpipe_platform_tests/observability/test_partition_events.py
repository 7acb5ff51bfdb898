"""The form of partition events in the log."""

from __future__ import annotations

import json
import logging

import pytest

from kpipe_platform.observability import PartitionEvent, PartitionEventKind
from kpipe_platform.observability.events import log_events, reason_of

LOGGER = "kpipe_platform.observability.events"


def event(kind: PartitionEventKind = PartitionEventKind.STARTED, **more: object) -> PartitionEvent:
    return PartitionEvent(kind, "orders", 3, "kpipe.a", at_ms=1_700_000_000_123, **more)  # type: ignore[arg-type]


def test_a_message_is_one_json_object_of_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    log_events(
        [
            event(),
            event(
                PartitionEventKind.FAILED,
                asset="shop/orders",
                run_id="r1",
                start=0,
                end=7,
                counts={"read": 0},
                reason='says "no"\nand %s',
            ),
        ]
    )
    told = [(record.levelname, json.loads(record.getMessage())) for record in caplog.records]
    common = {"at": "2023-11-14T22:13:20.123Z", "topic": "orders", "partition": 3, "group": "kpipe.a"}
    assert told == [
        ("INFO", {"event": "started", **common}),
        (
            "WARNING",
            {
                "event": "failed",
                **common,
                "asset": "shop/orders",
                "run_id": "r1",
                "start": 0,
                "end": 7,
                "read": 0,
                "reason": 'says "no"\nand %s',
            },
        ),
    ]
    assert not any("\n" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("kind", list(PartitionEventKind))
def test_only_what_somebody_may_have_to_see_to_is_a_warning(
    kind: PartitionEventKind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    log_events([event(kind)])
    [record] = caplog.records
    assert (record.levelno == logging.WARNING) == (kind.value in ("failed", "lost"))


def test_a_reason_has_a_bounded_length() -> None:
    assert reason_of(ValueError("x" * 5_000)) == "ValueError: " + "x" * 987 + "…"
    assert reason_of(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_place_is_told_for_people() -> None:
    assert event(start=5, end=9).where == "orders/3 [5, 9)"
    assert PartitionEvent(PartitionEventKind.FAILED, "orders", None, "g").where == "orders/all"
