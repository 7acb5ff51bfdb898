"""Events that a run reports to its caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.slices.report import PartitionResult, SliceReport
from kpipe_platform.slices.target import SliceTarget
from kpipe_platform.slices.values import Unit


@dataclass(frozen=True)
class TargetPrepared:
    """The topics to write exist. No slice is planned yet."""

    target: SliceTarget


@dataclass(frozen=True)
class SliceStarted:
    """A slice of a unit was planned."""

    unit: Unit
    slice: Slice


@dataclass(frozen=True)
class SliceCommitted:
    """A slice of a unit, or a part of one, was committed."""

    unit: Unit
    report: SliceReport


@dataclass(frozen=True)
class UnitFinished:
    """The run takes no further slices of a unit."""

    result: PartitionResult


RunEvent: TypeAlias = TargetPrepared | SliceStarted | SliceCommitted | UnitFinished
