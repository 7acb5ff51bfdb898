"""Each codec does what kpipe relies on, in Python and on every way that a record takes."""

from __future__ import annotations

import pytest

from kpipe_platform import KafkaIOManager
from kpipe_platform.testing.codecs import check_codec, check_codec_in_topics

from .conformance import CASES

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", CASES)
def test_in_python(name: str) -> None:
    check_codec(CASES[name])


# One codec of Spark expressions; the example of a codec of one's own is fast too. The others take minutes together.
_FAST = ("json",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _FAST else pytest.mark.slow) for name in CASES]
)
def test_in_topics(name: str, kafka_io_manager: KafkaIOManager) -> None:
    check_codec_in_topics(CASES[name], kafka_io_manager)
