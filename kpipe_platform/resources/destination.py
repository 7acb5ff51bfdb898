"""Resources for the destinations of outputs and dead letters."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from pydantic import Field, field_validator

from kpipe_platform.dead_letters.envelope.origin import CORRELATION_HEADER
from kpipe_platform.dead_letters.write.context import HeaderStyle
from kpipe_platform.kafka.client.properties import check_producer
from kpipe_platform.policies.limits import DEFAULT_MINIMUM, DeadLetterLimit
from kpipe_platform.resources.connected import Connected
from kpipe_platform.resources.connection import known_values
from kpipe_platform.slices.settings import DeadLetterSettings, DestinationSettings

_PREVIEW_ROWS = 5


class KafkaDestination(Connected):
    """Writes outputs to Kafka. All records are acknowledged before offsets are committed.

    Raises:
        ConfigError: A property in ``producer`` is reserved for kpipe, unknown, or not a producer property.
    """

    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="exactly_once: one transaction for outputs, dead letters and offsets; at_least_once: parallel "
        "writers, then a commit of the offsets",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="batch compression"
    )
    transaction_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="time that a transaction may be open before the broker aborts it, seconds; the upper bound is the "
        "brokers' transaction.max.timeout.ms, 900 s by default",
    )
    delivery_timeout_s: float = Field(
        default=60.0, gt=0, description="maximum wait for the acknowledgment of a record, seconds"
    )
    stamp_source: bool = Field(
        default=True,
        description="add provenance headers to outputs whose stage keeps _kafka: kpipe.source, kpipe.instance, "
        "kpipe.worker and, if deployments share partitions, kpipe.lease",
    )
    correlation_header: str | None = Field(
        default=CORRELATION_HEADER,
        min_length=1,
        description="header that carries the correlation id from record to output; with stamp_source, an output "
        "without the header gets an id built from its source record's coordinates, as in a dead letter; None: none",
    )
    preview_rows: int | None = Field(
        default=None,
        ge=0,
        le=50,
        description="number of written records to show unredacted in the metadata; 0: none. None: 5, or 0 if the "
        "dead-letter destination has a redaction hook",
    )
    producer: dict[str, str] = Field(default={}, description="further librdkafka producer properties")

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)
        own = {}
        # Environment variables have no value before a run, so check only literal values.
        if type(self.delivery_timeout_s) is float and type(self.transaction_timeout_s) is float:
            timeout_s = min(self.delivery_timeout_s, self.transaction_timeout_s)
            own["message.timeout.ms"] = str(int(timeout_s * 1000))
        check_producer("KafkaDestination(producer=...)", known_values(self.producer), own)

    def settings(self, *, is_redacting: bool) -> DestinationSettings:
        """Return the settings for the steps of a slice.

        Args:
            is_redacting: Same as for `rows_to_preview`.
        """
        return DestinationSettings(
            connection=self.connection_settings,
            delivery=self.delivery,
            compression=self.compression,
            transaction_timeout_s=self.transaction_timeout_s,
            delivery_timeout_s=self.delivery_timeout_s,
            stamp_source=self.stamp_source,
            correlation_header=self.correlation_header,
            preview_rows=self.rows_to_preview(is_redacting=is_redacting),
            producer=self.producer,
        )

    def rows_to_preview(self, *, is_redacting: bool) -> int:
        """Return the number of written records to show in the metadata.

        Args:
            is_redacting: Whether the dead-letter destination has a redaction hook. If so, the default is 0, because
                the hook redacts only failed records and cannot redact outputs.
        """
        if self.preview_rows is not None:
            return self.preview_rows
        return 0 if is_redacting else _PREVIEW_ROWS


class KafkaDeadLetterDestination(Connected):
    """Writes failed records with their faults to a dead-letter topic."""

    topic: str = Field(default="{source_topic}.dlq", description="topic name; {source_topic} is replaced")
    form: Literal["envelope", "raw"] = Field(
        default="envelope",
        description="envelope: a documented JSON object with the original bytes; raw: only the original bytes",
    )
    create_topic: bool = Field(
        default=False, description="create a missing dead-letter topic with as many partitions as its source"
    )
    headers: list[str] = Field(
        default=["connect"],
        description="families of error headers to write, in this order. connect: __connect.errors.* as text, as in "
        "Kafka Connect; spring: kafka_dlt-* with binary numbers, as in Spring Kafka. An empty list: none",
    )
    oversized: Literal["reference", "raw"] = Field(
        default="reference",
        description="how to store a payload that does not fit into an envelope. reference: its coordinates, sizes and "
        "checksums; raw: the original bytes without an envelope if they fit, otherwise a reference",
    )
    correlation_header: str = Field(
        default=CORRELATION_HEADER,
        min_length=1,
        description="header of the source record that contains its correlation id",
    )
    redact: str | None = Field(
        default=None,
        description="hook that removes sensitive data from dead letters, as package.module:function; Spark's workers "
        "must be able to import it. It is called with (record: KafkaRecord, fault: Fault) and returns the record, or "
        "the record and the fault",
    )
    max_dead_letter_ratio: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="maximum share of a slice's records that may be dead-lettered or skipped; above it, the run fails "
        "and nothing of the slice is written. None: no limit",
    )
    min_dead_letters: int = Field(
        default=DEFAULT_MINIMUM,
        ge=1,
        description="number of dead-lettered and skipped records of a slice from which max_dead_letter_ratio applies",
    )

    # Dagster's configuration does not support a list of literals.
    @field_validator("headers")
    @classmethod
    def _families(cls, value: list[str]) -> list[str]:
        known = get_args(HeaderStyle)
        if len(set(value)) < len(value) or not set(value) <= set(known):
            msg = f"headers={value}: use each of {', '.join(map(repr, known))} at most once, and no other name"
            raise ValueError(msg)
        return value

    @property
    def header_families(self) -> tuple[HeaderStyle, ...]:
        """The families of error headers to write, in order."""
        return tuple(cast("HeaderStyle", family) for family in self.headers)

    @property
    def settings(self) -> DeadLetterSettings:
        """The settings for the steps of a slice."""
        return DeadLetterSettings(
            connection=self.connection_settings,
            topic=self.topic,
            form=self.form,
            create_topic=self.create_topic,
            header_families=self.header_families,
            oversized=self.oversized,
            correlation_header=self.correlation_header,
            redact=self.redact,
        )

    @property
    def limit(self) -> DeadLetterLimit:
        """The limit on the share of failed records in a slice."""
        return DeadLetterLimit(self.max_dead_letter_ratio, self.min_dead_letters)

    def topic_for(self, source_topic: str) -> str:
        """Return the name of the dead-letter topic for a source topic."""
        return self.topic.replace("{source_topic}", source_topic)
