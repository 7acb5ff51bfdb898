"""Slices over real topics, planned without Dagster and Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.slices.plan.facts import gather_facts
from kpipe_platform.slices.plan.ranges import LastMaterialization, PlanPolicy, plan_slice
from kpipe_platform.testing.broker.embedded import EmbeddedBroker

PlanNext = Callable[..., Slice]


@pytest.fixture
def settings(kafka_broker: EmbeddedBroker) -> ConnectionSettings:
    return ConnectionSettings(kafka_broker.bootstrap_servers, request_timeout_s=10)


@pytest.fixture
def clients(settings: ConnectionSettings) -> Iterator[Clients]:
    with Clients(settings) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def plan(clients: Clients, group: str) -> PlanNext:
    """Plans the next slice of a topic's partitions, as a run of its own."""

    def make(
        topic: str,
        *partitions: int,
        run_id: str | None = None,
        slice_id: str = "slice",
        earlier: LastMaterialization | None = None,
        **policy: Any,
    ) -> Slice:
        how = PlanPolicy(group=group, **policy)
        wanted = [(topic, number) for number in partitions or (0,)]
        facts = gather_facts(clients, how, wanted, lambda _: earlier)
        return plan_slice(facts, how, run_id=run_id or uuid.uuid4().hex, slice_id=slice_id)

    return make
