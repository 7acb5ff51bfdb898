"""The partition events that a sensor logs, each change once."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

import dagster as dg
import pytest

from kpipe_platform import KafkaIOManager, KafkaSource, PartitionOwnership, PartitionScaling
from kpipe_platform.kafka.ownership.events import OwnershipEvent
from kpipe_platform.kafka.ownership.status import NONE
from kpipe_platform.partitions import pauses
from kpipe_platform.sensors.tick.cursor import REMEMBERED, Cursor
from kpipe_platform.sensors.tick.events import ownership_listener, partition_events
from kpipe_platform_tests.io_managers.killing import wait_until
from kpipe_platform_tests.sensors.conftest import ASSET, Sensing

LOGGER = "kpipe_platform.observability.events"


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


def observed(instance: dg.DagsterInstance) -> int:
    return len(instance.fetch_observations(ASSET, limit=500).records)


def ownership(kind: str = "assigned", *numbers: int, in_flight: frozenset[tuple[str, int]] = NONE) -> OwnershipEvent:
    places = frozenset(("orders", n) for n in numbers)
    return OwnershipEvent(kind, places, "kpipe.enriched", "m-1", "why", in_flight)  # type: ignore[arg-type]


def test_an_ownership_event_is_told_partition_by_partition() -> None:
    found = partition_events(ownership("revoked", 2, 0, in_flight=frozenset({("orders", 2)})), "enriched")
    assert [(e.kind.value, e.partition, e.member, e.reason) for e in found] == [
        ("revoked", 0, "m-1", "why"),
        ("revoked", 2, "m-1", "why; a run on it was in flight"),
    ]
    assert len({e.at_ms for e in found}) == 1


@pytest.mark.parametrize("kind", ["assigned", "draining", "drained", "revoked", "lost"])
def test_every_kind_of_ownership_event_is_logged_on_its_thread(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    member = threading.Thread(target=ownership_listener(ASSET), args=(ownership(kind, 0, 1),))
    member.start()
    member.join()
    assert [(e["event"], e["partition"], e["asset"], e["reason"]) for e in logged(caplog)] == [
        (kind, 0, "enriched", "why"),
        (kind, 1, "enriched", "why"),
    ]


def test_what_happens_twice_is_logged_twice_and_in_order(caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("assigned", "lost", "assigned"):
        ownership_listener(ASSET)(ownership(kind, 0))
    assert [e["event"] for e in logged(caplog)] == ["assigned", "lost", "assigned"]


@pytest.mark.broker
def test_a_saturated_partition_is_logged_when_it_begins_to_wait(
    make_sensing: Callable[..., Sensing], caplog: pytest.LogCaptureFixture
) -> None:
    # Observations are about runs, also where the asset wants them.
    scaling = PartitionScaling(emit_partition_execution_events=True)
    sensing = make_sensing(3, asset_options={"scaling": scaling})
    for number in (0, 1):
        sensing.send(number, partition=number)
    assert sensing.asked() == ["0"]
    run = sensing.queue(dg.DagsterRunStatus.STARTED, asset_selection={ASSET}, tags={"dagster/partition": "0"})
    assert sensing.asked() == []
    # A sensor of another process knows it from the cursor.
    sensing.sensor = sensing.make_sensor()
    assert sensing.asked() == []
    assert [(e["event"], e["partition"], e["start"], e["end"]) for e in logged(caplog)] == [("saturated", 1, 0, 1)]
    assert observed(sensing.instance) == 0
    # Another one begins to wait; then the first is asked for, and waits again later.
    sensing.send(2, partition=2)
    sensing.asked()
    sensing.end(run)
    assert sensing.asked() == ["1"]
    assert [e["partition"] for e in logged(caplog)] == [1, 2, 0]


@pytest.mark.broker
def test_pausing_is_logged_once_by_whoever_pauses(
    make_sensing: Callable[..., Sensing], caplog: pytest.LogCaptureFixture
) -> None:
    scaling = PartitionScaling(emit_partition_execution_events=True)
    sensing = make_sensing(2, asset_options={"scaling": scaling})
    pauses.pause(sensing.instance, sensing.asset.key, 1, "broken producer")
    (event,) = logged(caplog)
    facts = {"event": "paused", "partition": 1, "asset": "enriched", "reason": "broken producer"}
    assert {name: value for name, value in event.items() if name != "at"} == facts
    for _ in range(2):
        sensing.tick()
    pauses.resume(sensing.instance, sensing.asset.key, 1)
    sensing.tick()
    assert [e["event"] for e in logged(caplog)] == ["paused", "resumed"]
    assert observed(sensing.instance) == 0


def test_what_the_cursor_remembers_as_logged_is_bounded() -> None:
    many = Cursor(saturated=frozenset(range(100_000)))
    assert len(many.to_text()) < 5_000
    assert len(Cursor.from_text(many.to_text()).saturated) == REMEMBERED


def test_a_cursor_from_before_there_were_events_is_taken() -> None:
    text = json.loads(Cursor(after=3).to_text())
    del text["saturated"]
    assert Cursor.from_text(json.dumps(text)) == Cursor(after=3)


@pytest.mark.broker
def test_what_the_source_owns_is_logged(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager, caplog: pytest.LogCaptureFixture
) -> None:
    source = KafkaSource(
        connection=manager.source.connection,
        group_prefix=manager.source.group_prefix,
        ownership=PartitionOwnership(instance_id="blue"),
    )
    sensing = make_sensing(
        2, manager=KafkaIOManager(source=source, destination=manager.destination, spark=manager.spark)
    )

    def assigned() -> bool:
        sensing.tick()
        return len(logged(caplog)) >= 2

    wait_until(assigned, "both partitions are assigned")
    assert [(e["event"], e["partition"], e["asset"], e["reason"]) for e in logged(caplog)] == [
        ("assigned", number, "enriched", "assigned by the coordinator") for number in (0, 1)
    ]
