"""Events of the platform for logs and log collectors. This package depends on neither Dagster nor Spark."""

from kpipe_platform.observability.events import PartitionEvent, PartitionEventKind

__all__ = ["PartitionEvent", "PartitionEventKind"]
