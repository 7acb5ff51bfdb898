"""One owner for each group in a process. No broker: nothing is started."""

from __future__ import annotations

from typing import Any

from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.kafka.ownership.registry import ownership_of


def test_a_process_keeps_one_owner_for_each_group_with_the_callbacks_of_the_last_call() -> None:
    def owner(group: str = "kpipe.a", **options: Any) -> ConsumerGroupOwnership:
        return ConsumerGroupOwnership(ConnectionSettings("localhost:1"), group, ["t"], **options)

    first = owner()
    assert ownership_of(first) is first
    again = owner(in_flight=lambda asked: asked)
    assert ownership_of(again) is first
    assert first.callbacks == again.callbacks
    other = owner("kpipe.b")
    assert ownership_of(other) is other
    changed = owner(session_timeout_s=7)
    assert ownership_of(changed) is changed
    assert ownership_of(owner(session_timeout_s=7)) is changed
