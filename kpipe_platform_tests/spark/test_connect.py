"""The slice protocol on a Spark Connect server: cases that run in a process of their own, reported one by one."""

from __future__ import annotations

import pytest

from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.spark.connect_runs import names_of, outcomes_of

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

CASES = "connect_cases.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, kafka_broker: EmbeddedBroker) -> dict[str, str | None]:
    return outcomes_of(CASES, tmp_path_factory.mktemp("connect"), kafka_broker.bootstrap_servers)


@pytest.mark.parametrize("name", names_of(CASES))
def test_connect(outcomes: dict[str, str | None], name: str) -> None:
    assert name in outcomes, f"{name} did not run"
    assert outcomes[name] is None, outcomes[name]
