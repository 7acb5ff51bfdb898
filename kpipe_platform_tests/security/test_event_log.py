"""What Spark stores of a query in its event log, from which its UI is made: no secret of the connection.

A process that has a Spark session of its own cannot use a server, so the cases run in another one.
"""

from __future__ import annotations

import pytest

from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.spark.connect_runs import names_of, outcomes_of

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

CASES = "../security/event_log_cases.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, kafka_broker: EmbeddedBroker) -> dict[str, str | None]:
    return outcomes_of(CASES, tmp_path_factory.mktemp("event-log"), kafka_broker.bootstrap_servers)


@pytest.mark.parametrize("name", names_of(CASES))
def test_secrets_are_not_in_the_event_log(outcomes: dict[str, str | None], name: str) -> None:
    assert outcomes[name] is None, outcomes[name]
