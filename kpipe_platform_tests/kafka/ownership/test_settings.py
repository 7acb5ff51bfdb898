"""What is refused before anything connects, and the properties of the member's consumer."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.ownership.settings import OwnershipSettings


def settings(extra: dict[str, str] | None = None, **changes: Any) -> OwnershipSettings:
    given: dict[str, Any] = {"connection": ConnectionSettings("localhost:9092", librdkafka=extra or {})}
    return OwnershipSettings(**{**given, "group": "kpipe.a", "topics": ("t",), **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"group": ""}, "group is empty", id="no group"),
        pytest.param({"topics": ()}, "topics is empty", id="no topic"),
        pytest.param({"topics": ("t", "")}, "topics is empty", id="an empty topic"),
        pytest.param({"protocol": "share"}, "protocol is 'share'", id="unknown protocol"),
        pytest.param({"rebalance_mode": "wait"}, "rebalance_mode is 'wait'", id="unknown mode"),
        pytest.param({"instance_id": ""}, "instance_id is empty", id="empty instance"),
        pytest.param({"session_timeout_s": 0}, "session_timeout_s is 0", id="no session timeout"),
        pytest.param({"drain_deadline_s": -1}, "drain_deadline_s is -1", id="negative drain"),
        pytest.param({"drain_deadline_s": 86_400}, "max.poll.interval.ms", id="drain past Kafka's longest"),
        pytest.param({"extra": {"session.timeout.ms": "1"}}, "'session.timeout.ms' is set by kpipe", id="session"),
        pytest.param({"extra": {"max.poll.interval.ms": "1"}}, "'max.poll.interval.ms' is set by", id="poll"),
    ],
)
def test_refused_before_anything_connects(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        settings(**changes)
    assert caught.value.fix


@pytest.mark.parametrize("drain_deadline_s", [0.0, 30.0, 3600.0])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_drain_always_ends_before_the_coordinator_runs_out_of_patience(
    protocol: str, drain_deadline_s: float
) -> None:
    config = settings(protocol=protocol, drain_deadline_s=drain_deadline_s).consumer_config()
    assert config["max.poll.interval.ms"] >= drain_deadline_s * 1000 + 30_000


def test_the_asset_s_own_group_is_never_joined_and_nothing_is_stored() -> None:
    config = settings().consumer_config()
    assert config["group.id"] == "kpipe.a.owners"
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False


def test_the_brokers_decide_the_session_of_the_new_protocol() -> None:
    new = settings(protocol="consumer", instance_id="blue").consumer_config()
    assert new["group.instance.id"] == "blue"
    assert not {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"} & new.keys()
    old = settings().consumer_config()
    assert (old["session.timeout.ms"], old["partition.assignment.strategy"]) == (10_000, "cooperative-sticky")
