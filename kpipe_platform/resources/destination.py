"""The resources that say how outputs and dead letters are written."""

from __future__ import annotations

from typing import Literal

import dagster as dg
from pydantic import Field

from kpipe_platform.resources.connection import KafkaConnection


class KafkaDestination(dg.ConfigurableResource):  # type: ignore[type-arg]
    """How outputs reach Kafka: every record acknowledged before an offset moves."""

    connection: KafkaConnection
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="exactly_once: outputs, dead letters and offsets in one transaction; at_least_once: parallel "
        "writers, then the offsets",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="batch compression"
    )
    transaction_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="the broker aborts a transaction that is open for longer, seconds; brokers allow at most "
        "transaction.max.timeout.ms, 900 s by default",
    )
    delivery_timeout_s: float = Field(
        default=60.0, gt=0, description="how long one record may wait for its acknowledgement, seconds"
    )
    stamp_source: bool = Field(
        default=True, description="add the header kpipe.source to outputs whose stage keeps _kafka"
    )
    preview_rows: int = Field(default=5, ge=0, le=50, description="written records to show in the metadata; 0: none")
    producer: dict[str, str] = Field(default={}, description="further librdkafka producer properties")


class KafkaDeadLetterDestination(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Where records that failed go, with the reason."""

    connection: KafkaConnection
    topic: str = Field(default="{source_topic}.dlq", description="topic name; {source_topic} is replaced")
    form: Literal["envelope", "raw"] = Field(
        default="envelope", description="envelope: documented JSON around the original bytes; raw: the original bytes"
    )
    create_topic: bool = Field(
        default=False, description="create a missing dead-letter topic with as many partitions as its source"
    )

    def topic_for(self, source_topic: str) -> str:
        """Name of the dead-letter topic of a source topic."""
        return self.topic.replace("{source_topic}", source_topic)
