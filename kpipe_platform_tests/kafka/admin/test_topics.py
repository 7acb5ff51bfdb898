"""Where a topic differs from its declaration: pure, no broker."""

from __future__ import annotations

import pytest

from kpipe_platform import TopicSpec
from kpipe_platform.kafka.admin.topics import differences

CONFIG = {"retention.ms": "-1", "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.5", "empty": ""}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TopicSpec(2), []),
        (TopicSpec(1), []),
        (TopicSpec(2, replication_factor=3), []),
        (TopicSpec(3), ["it has 2 partition(s), not 3"]),
        (TopicSpec(2, config={"retention.ms": " -1 "}), []),
        (TopicSpec(2, config={"retention.ms": "1"}), ["retention.ms is '-1', not '1'"]),
        (TopicSpec(2, config={"cleanup.policy": "delete, compact"}), []),
        (TopicSpec(2, config={"cleanup.policy": "delete"}), ["cleanup.policy is 'compact,delete', not 'delete'"]),
        (TopicSpec(2, config={"min.cleanable.dirty.ratio": "0.50"}), []),
        (TopicSpec(2, config={"empty": ""}), []),
        (TopicSpec(2, config={"nonsense": "1"}), ["there is no topic setting 'nonsense'"]),
    ],
)
def test_differences(spec: TopicSpec, says: list[str]) -> None:
    assert differences(spec, 2, CONFIG) == says
