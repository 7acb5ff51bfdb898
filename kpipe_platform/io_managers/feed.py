"""A topic that is read slice by slice: what a ``@kafka_asset``'s Kafka input is loaded as.

The stage is called once a slice, so the input is the promise to read, not the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.io_managers.pipeline import Pipeline


@dataclass(frozen=True)
class TopicFeed:
    """One Kafka input.

    Args:
        topic: The topic.
        form: What the stage's annotation asks for; see ``kpipe_platform.spark.convert``.
        pipeline: How to plan and read it.
    """

    topic: KafkaTopic
    form: str
    pipeline: Pipeline


@dataclass(frozen=True)
class RunLimits:
    """How many consecutive slices one materialisation takes of a Kafka partition.

    Args:
        max_slices: At most this many; None: until caught up.
        max_duration_s: Take no further slice after this long, seconds; None: no limit.
        linger_s: Wait for new records for this long after the last ones, seconds; None: end when caught up.
    """

    max_slices: int | None = 1
    max_duration_s: float | None = None
    linger_s: float | None = None

    def end_of(self, began: float) -> float:
        """The moment after which no further slice is taken, by the clock of ``began``."""
        return math.inf if self.max_duration_s is None else began + self.max_duration_s

    def are_reached(self, slices: int) -> bool:
        """Whether so many slices are all that is to be taken."""
        return self.max_slices is not None and slices >= self.max_slices


@dataclass(frozen=True)
class StagedFeeds:
    """What a ``@kafka_asset`` returns: the stage with its inputs, not yet run.

    Args:
        feeds: Kafka inputs by parameter name.
        stage: Calls the user's function with one slice's inputs.
        limits: How many slices to take.
        isolate: Whether the stage may be called again on parts of a slice, to find the record that it fails on.
    """

    feeds: Mapping[str, TopicFeed]
    stage: Callable[[Mapping[str, Any]], Any]
    limits: RunLimits
    isolate: bool = True
