"""What happens in the platform, as events for logs and collectors. No Dagster here, and no Spark."""

from kpipe_platform.observability.events import PartitionEvent, PartitionEventKind

__all__ = ["PartitionEvent", "PartitionEventKind"]
