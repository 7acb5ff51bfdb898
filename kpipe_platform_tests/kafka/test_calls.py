"""Calls of the Kafka client and what it raises."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpipe_platform.kafka.calls import served


def test_a_fatal_error_behind_delivery_callbacks_is_told_as_itself() -> None:
    """The client sets it as the exception, and calls back all the same."""
    fatal = KafkaException(KafkaError(KafkaError._FENCED))

    def poll() -> int:
        raise SystemError("returned a result with an exception set") from fatal

    with pytest.raises(KafkaException) as caught:
        served(poll)
    assert caught.value is fatal

    def other() -> int:
        raise SystemError("something else")

    with pytest.raises(SystemError, match="something else"):
        served(other)
    assert served(lambda: 3) == 3
