"""What a run refuses before it asks a broker."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform import FaultAction, FaultPolicies
from kpipe_platform.dead_letters import Distribution
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.slices.plan.ranges import PlanPolicy
from kpipe_platform.slices.settings import DeadLetterSettings, RunInfo, SliceSettings
from kpipe_platform.slices.target import prepare_target

CONNECTION = ConnectionSettings(bootstrap_servers="127.0.0.1:9")


def settings(dead_letter: DeadLetterSettings | None) -> SliceSettings:
    engine: Any = None
    run = RunInfo("a", "kpipe.a", "run", 1, Distribution(), lambda _: None)
    policies = FaultPolicies.of(FaultAction.DEAD_LETTER)
    return SliceSettings(run, engine, CONNECTION, PlanPolicy("kpipe.a"), policies, dead_letter=dead_letter)


@pytest.mark.parametrize(
    ("dead_letter", "words"),
    [
        (None, "no dead-letter destination"),
        (DeadLetterSettings(CONNECTION, "a.dlq", redact="no_such_module:hook"), "no_such_module"),
    ],
)
def test_refusals(dead_letter: DeadLetterSettings | None, words: str) -> None:
    clients: Any = None
    with pytest.raises(ConfigError, match=words):
        prepare_target(settings(dead_letter), clients, [], None)
