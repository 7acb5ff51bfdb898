"""What a sensor tells of partitions, and that it tells each change once."""

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
from kpipe_platform.sensors.cursor import Cursor
from kpipe_platform.sensors.events import TickEvents, partition_events
from kpipe_platform_tests.io_managers.killing import wait_until

from .conftest import ASSET, Sensing

LOGGER = "kpipe_platform.observability.events"


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


def observed(instance: dg.DagsterInstance) -> list[tuple[object, str | None, object]]:
    records = instance.fetch_observations(ASSET, limit=500, ascending=True).records
    found = [record.asset_observation for record in records]
    return [
        (o.metadata["event"].value, o.partition, o.metadata["reason"].value if "reason" in o.metadata else None)
        for o in found
        if o is not None
    ]


def ownership(kind: str = "assigned", *numbers: int, in_flight: frozenset[tuple[str, int]] = NONE) -> OwnershipEvent:
    places = frozenset(("orders", n) for n in numbers)
    return OwnershipEvent(kind, places, "kpipe.enriched", "m-1", "why", in_flight)  # type: ignore[arg-type]


def test_an_ownership_event_is_told_partition_by_partition() -> None:
    found = partition_events(ownership("revoked", 2, 0, in_flight=frozenset({("orders", 2)})), "enriched")
    assert [(e.kind.value, e.partition, e.member, e.reason) for e in found] == [
        ("revoked", 0, "m-1", "why"),
        ("revoked", 2, "m-1", "why; work on it was in flight"),
    ]
    assert len({e.at_ms for e in found}) == 1


@pytest.mark.parametrize("kind", ["assigned", "draining", "drained", "revoked", "lost"])
def test_every_kind_of_ownership_event_is_logged_on_its_thread_and_observed_by_a_tick(
    kind: str, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    events = TickEvents()
    member = threading.Thread(target=events.listener(ASSET), args=(ownership(kind, 0, 1),))
    member.start()
    member.join()
    assert [(e["event"], e["partition"], e["asset"]) for e in logged(caplog)] == [
        (kind, 0, "enriched"),
        (kind, 1, "enriched"),
    ]
    assert observed(instance) == []
    for _ in range(2):
        events.deliver(instance, ASSET, partitioned=True, observed=True)
    assert observed(instance) == [(kind, "0", "why"), (kind, "1", "why")]


def test_what_happens_twice_is_told_twice_and_in_order(instance: dg.DagsterInstance) -> None:
    events = TickEvents()
    for kind in ("assigned", "lost", "assigned"):
        events.listener(ASSET)(ownership(kind, 0))
    events.deliver(instance, ASSET, partitioned=True, observed=True)
    assert [event for event, *_ in observed(instance)] == ["assigned", "lost", "assigned"]


def test_a_tick_observes_a_bounded_number_and_the_next_goes_on(instance: dg.DagsterInstance) -> None:
    events = TickEvents()
    events.listener(ASSET)(ownership("assigned", *range(150)))
    events.deliver(instance, ASSET, partitioned=True, observed=True)
    assert len(observed(instance)) == 100
    events.deliver(instance, ASSET, partitioned=True, observed=True)
    assert {partition for _, partition, _ in observed(instance)} == {str(n) for n in range(150)}


def test_what_nobody_wants_observed_is_dropped(instance: dg.DagsterInstance) -> None:
    events = TickEvents()
    events.listener(ASSET)(ownership("assigned", 0))
    events.deliver(instance, ASSET, partitioned=True, observed=False)
    events.deliver(instance, ASSET, partitioned=True, observed=True)
    assert observed(instance) == []


@pytest.mark.broker
@pytest.mark.parametrize("emits", [True, False])
def test_a_saturated_partition_is_told_when_it_begins_to_wait(
    emits: bool, make_sensing: Callable[..., Sensing], caplog: pytest.LogCaptureFixture
) -> None:
    scaling = PartitionScaling(emit_partition_execution_events=emits)
    sensing = make_sensing(3, asset_options={"scaling": scaling})
    for number in (0, 1):
        sensing.send(number, partition=number)
    assert sensing.asked() == ["0"]
    run = sensing.queue(dg.DagsterRunStatus.STARTED, asset_selection={ASSET}, tags={"dagster/partition": "0"})
    for _ in range(2):
        assert sensing.asked() == []
    assert [(e["event"], e["partition"], e["start"], e["end"]) for e in logged(caplog)] == [("saturated", 1, 0, 1)]
    reason = "as many partitions are worked on as the bounds allow"
    assert observed(sensing.instance) == ([("saturated", "1", reason)] if emits else [])
    # Another one begins to wait; then the first is asked for, and waits again later.
    sensing.send(2, partition=2)
    sensing.asked()
    sensing.end(run)
    assert sensing.asked() == ["1"]
    assert [e["partition"] for e in logged(caplog)] == [1, 2, 0]


@pytest.mark.broker
def test_pausing_is_logged_at_once_and_observed_by_the_next_tick(
    make_sensing: Callable[..., Sensing], caplog: pytest.LogCaptureFixture
) -> None:
    scaling = PartitionScaling(emit_partition_execution_events=True)
    sensing = make_sensing(2, asset_options={"scaling": scaling})
    pauses.pause(sensing.instance, sensing.group, sensing.source, 1, "broken producer")
    assert [(e["event"], e["partition"], e["reason"]) for e in logged(caplog)] == [("paused", 1, "broken producer")]
    for _ in range(2):
        sensing.tick()
    assert observed(sensing.instance) == [("paused", "1", "broken producer")]
    pauses.resume(sensing.instance, sensing.group, sensing.source, 1)
    for _ in range(2):
        sensing.tick()
    assert observed(sensing.instance) == [("paused", "1", "broken producer"), ("resumed", "1", None)]
    # The tick does not log what whoever paused has logged.
    assert [e["event"] for e in logged(caplog)] == ["paused", "resumed"]


@pytest.mark.broker
def test_what_is_told_survives_a_restart_of_the_sensor_and_is_bounded(make_sensing: Callable[..., Sensing]) -> None:
    scaling = PartitionScaling(emit_partition_execution_events=True)
    sensing = make_sensing(1, asset_options={"scaling": scaling})
    pauses.pause(sensing.instance, sensing.group, sensing.source, 0)
    sensing.tick()
    sensing.sensor = sensing.make_sensor()
    sensing.tick()
    assert len(observed(sensing.instance)) == 1
    many = Cursor(told={"saturated": frozenset(range(100_000))})
    back = Cursor.from_text(many.to_text())
    assert len(many.to_text()) < 5_000
    assert back.room_to_tell(len(back.told["saturated"])) == 0


def test_a_cursor_from_before_there_were_events_is_taken() -> None:
    text = json.loads(Cursor(after=3).to_text())
    del text["told"]
    assert Cursor.from_text(json.dumps(text)) == Cursor(after=3)


@pytest.mark.broker
def test_what_the_source_owns_is_observed_by_the_sensors_ticks(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager
) -> None:
    source = KafkaSource(
        connection=manager.source.connection,
        group_prefix=manager.source.group_prefix,
        ownership=PartitionOwnership(instance_id="blue"),
    )
    sensing = make_sensing(
        2,
        manager=KafkaIOManager(source=source, destination=manager.destination, spark=manager.spark),
        asset_options={"scaling": PartitionScaling(emit_partition_execution_events=True)},
    )

    def assigned() -> bool:
        sensing.tick()
        return len(observed(sensing.instance)) >= 2

    wait_until(assigned, "both partitions are observed to be assigned")
    assert observed(sensing.instance) == [("assigned", n, "given by the coordinator") for n in ("0", "1")]
