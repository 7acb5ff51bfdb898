"""Which action counts for a record that failed in one part: the nearest declaration."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.actions import FaultPolicies, FaultPolicy
from kpipe_platform.policies.faults import Component, FaultAction
from kpipe_platform.policies.limits import DeadLetterLimit
from kpipe_platform.policies.retry import RecordRetryPolicy

STOP, SKIP, LETTER = FaultAction.STOP, FaultAction.SKIP, FaultAction.DEAD_LETTER


@pytest.mark.parametrize(
    ("asset", "manager", "chosen"),
    [
        (FaultPolicies(), FaultPolicies(), STOP),
        (FaultPolicies(), FaultPolicies(SKIP), SKIP),
        (FaultPolicies(), FaultPolicies(SKIP, source=FaultPolicy(LETTER)), LETTER),
        (FaultPolicies(STOP), FaultPolicies(SKIP, source=FaultPolicy(LETTER)), STOP),
        (FaultPolicies(STOP, source=FaultPolicy(SKIP)), FaultPolicies(LETTER), SKIP),
        (FaultPolicies(stage=FaultPolicy(SKIP)), FaultPolicies(LETTER), LETTER),
    ],
)
def test_the_nearest_declaration_counts(asset: FaultPolicies, manager: FaultPolicies, chosen: FaultAction) -> None:
    merged = asset.over(manager)
    for component in (Component.SOURCE, Component.DECODE_KEY, Component.DECODE_VALUE):
        assert merged.action(component) is chosen


def test_retries_are_resolved_by_part() -> None:
    one, two = RecordRetryPolicy(max_attempts=1), RecordRetryPolicy(max_attempts=2)
    merged = FaultPolicies(stage=FaultPolicy(retry=one)).over(
        FaultPolicies(stage=FaultPolicy(retry=two), destination=FaultPolicy(retry=two))
    )
    assert (merged.retry("stage"), merged.retry("destination"), merged.retry("source")) == (one, two, None)
    assert merged.retry(None) is None


def test_a_dead_letter_takes_no_general_action() -> None:
    assert FaultPolicies(LETTER).action(Component.DEAD_LETTER) is STOP
    assert FaultPolicies(LETTER).over(FaultPolicies(SKIP)).action(Component.DEAD_LETTER) is STOP
    skipping = FaultPolicies(dead_letter=FaultPolicy(SKIP))
    assert FaultPolicies(LETTER).over(skipping).action(Component.DEAD_LETTER) is SKIP
    with pytest.raises(ConfigError, match="dead_letter"):
        FaultPolicies(dead_letter=FaultPolicy(LETTER))


def test_to_configuration_and_back() -> None:
    policies = FaultPolicies(
        LETTER, source=FaultPolicy(SKIP), stage=FaultPolicy(retry=RecordRetryPolicy(max_attempts=7))
    )
    config = policies.to_config()
    assert config["default"] == "dead_letter"
    assert config["source"] == {"action": "skip"}
    assert config["stage"]["retry"]["max_attempts"] == 7
    assert FaultPolicies.from_config(config).to_config() == config
    assert FaultPolicies.of(SKIP) == FaultPolicies(SKIP)
    assert FaultPolicies.of({"stage": "skip"}).action(Component.STAGE) is SKIP


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("drop", "'drop'"),
        ({"default": "drop"}, "'drop'"),
        ({"decode": "skip"}, "'decode'"),
        ({"stage": {"actoin": "skip"}}, "'actoin'"),
        ({"stage": 3}, "stage is 3"),
        ({"stage": {"retry": {"attempts": 3}}}, "attempts"),
        (3, "on_fault is 3"),
    ],
)
def test_what_cannot_be_read_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        FaultPolicies.of(wrong)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("failed", "records", "allowed"),
    [(9, 9, True), (10, 100, True), (11, 100, False), (10, 10, False), (0, 0, True)],
)
def test_the_limit_counts_from_its_minimum(failed: int, records: int, allowed: bool) -> None:
    assert DeadLetterLimit(0.1, 10).allows(failed, records) is allowed
    assert DeadLetterLimit().allows(failed, records)


@pytest.mark.parametrize("wrong", [{"ratio": 0}, {"ratio": 1.1}, {"ratio": 0.1, "minimum": 0}])
def test_a_limit_out_of_its_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DeadLetterLimit(**wrong)


def test_an_action_may_be_its_name() -> None:
    named = FaultPolicies("dead_letter", stage=FaultPolicy("skip"))  # type: ignore[arg-type]
    assert named == FaultPolicies(LETTER, stage=FaultPolicy(SKIP))
    assert named.to_config() == {"default": "dead_letter", "stage": {"action": "skip"}}
    for make in (FaultPolicy, FaultPolicies):
        with pytest.raises(ConfigError, match="'skipp', which is not one of stop, dead_letter, skip, rethrow"):
            make("skipp")  # type: ignore[arg-type]
