"""Values that pass from one step of a slice to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.dead_letters import Retry, Segment
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.slices.settings import RunLimits
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.notes import StageNotes


@dataclass(frozen=True)
class TopicInput:
    """A topic that a stage reads slice by slice.

    Args:
        topic: The topic.
        form: Input type that the stage's annotation names; see ``kpipe_platform.spark.stage.convert``.
    """

    topic: KafkaTopic
    form: str


@dataclass(frozen=True)
class DeferredStage:
    """The return value of a ``@kafka_asset``: its function and inputs. The function is called later, once per slice.

    Args:
        inputs: Kafka inputs by parameter name.
        call: Calls the user's function with one slice's inputs.
        limits: How many slices to take.
        isolate: Whether the stage may be called again on parts of a slice to find the records that it fails on.
    """

    inputs: Mapping[str, TopicInput]
    call: Callable[[Mapping[str, Any]], Any]
    limits: RunLimits
    isolate: bool = True


@dataclass(frozen=True)
class WrittenOutput:
    """Stands for an output of a ``@kafka_multi_asset`` other than the first: the first one's slices write it."""


@dataclass(frozen=True)
class Unit:
    """Kafka partitions that are processed together. The slices of a unit are processed one after another.

    Args:
        partition: Partition number in each topic; None: all partitions of all topics, in one transaction.
    """

    partition: int | None = None


@dataclass(frozen=True)
class PlannedSlice:
    """A slice that is planned and not yet processed.

    Args:
        slice: Its offset ranges.
        segments: Completed steps, for the envelopes of its dead letters.
        retries: Earlier failed attempts.
    """

    slice: Slice
    segments: tuple[Segment, ...] = ()
    retries: tuple[Retry, ...] = ()


Sources: TypeAlias = Mapping[str, tuple[KafkaTopic, SliceFrames]]
"""The rows of a slice by input name, each with its topic."""

Store: TypeAlias = Callable[[Slice, Any], None]
"""Stores the output of a slice outside Kafka."""


@dataclass(frozen=True)
class StagedSlice:
    """A slice whose stage was called.

    Args:
        slice: Its offset ranges.
        sources: Its rows by input name.
        output: What the stage returned. Of a ``@kafka_multi_asset``: a mapping of the outputs by name.
        notes: Records that its rules and row functions set aside.
        segments: Completed steps.
        retries: Earlier failed attempts.
    """

    slice: Slice
    sources: Sources
    output: Any
    notes: StageNotes
    segments: tuple[Segment, ...] = ()
    retries: tuple[Retry, ...] = ()
