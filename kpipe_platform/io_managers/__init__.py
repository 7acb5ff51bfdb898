"""Dagster IO managers: an input is the next slice of a topic, an output is an acknowledged write."""

from kpipe_platform.io_managers.committing import OffsetCommittingIOManager
from kpipe_platform.io_managers.current import current_slice
from kpipe_platform.io_managers.kafka import KafkaIOManager

__all__ = ["KafkaIOManager", "OffsetCommittingIOManager", "current_slice"]
