"""A Spark Connect server that dies in the middle of a slice: in a process of its own, with servers of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.spark.connect_runs import names_of, outcomes_of

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(700)]

CASES = "connect_death_cases.py"


def test_connect_death(tmp_path: Path, kafka_broker: EmbeddedBroker) -> None:
    outcomes = outcomes_of(CASES, tmp_path, kafka_broker.bootstrap_servers)
    assert outcomes == dict.fromkeys(names_of(CASES))
