"""An asset's topic: its name, and how its records are decoded to columns and encoded from columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kpipe_platform.codecs.base import Codec, Part
from kpipe_platform.codecs.config import codec_from_config, codec_to_config, require_codec
from kpipe_platform.codecs.json.codec import JsonCodec
from kpipe_platform.codecs.raw import RawCodec
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.admin.topics import TopicSpec, is_topic_name
from kpipe_platform.metadata_keys import TOPIC, TOPIC_SETTINGS
from kpipe_platform.registry.client import RegistryClient

if TYPE_CHECKING:
    from pyspark.sql import types as T

_COLUMNS = ("key_column", "timestamp_column", "headers_column", "partition_column")


@dataclass(frozen=True)
class KafkaTopic:
    """A topic that an asset reads or writes.

    Args:
        name: Topic name.
        key_column: Column of the stage's output that becomes the record key; None: the column ``key`` of a raw or
            text output, else the source record's key if the stage keeps ``_kafka``, else no key. A tombstone, which has
            no columns, keeps its record's key.
        value_codec: Codec of the values.
        key_codec: Codec of the keys, RawCodec by default. Read: ``_kafka.key`` is the decoded key; if the codec is not
            RawCodec or TextCodec, ``_kafka.key_bytes`` has its bytes. Written: encodes ``key_column`` or
            ``key_expression``. RawCodec and TextCodec write binary as it is, a nested type as JSON, and other types as
            text.
        timestamp_column: Column of the stage's output that becomes the record timestamp: a timestamp, a date, or a
            bigint of milliseconds since 1970; a field as ``_kafka.timestamp`` too. None: the column ``timestamp`` of a
            raw or text output, else the time of the write.
        create: How to create the topic if it does not exist. None: a missing topic is an error.
        key_expression: Instead of ``key_column``: a Spark SQL expression over the columns of the stage's output, such
            as ``"upper(country)"``, whose value becomes the record key.
        headers_column: Column of the stage's output that becomes the record headers: an array of structs with the
            fields ``key`` (string) and ``value`` (binary or string), or a map from string to binary or string. They
            replace the headers of the source record. None: the column ``headers`` of a raw or text output, else the
            source record's headers if the stage keeps ``_kafka``, else none.
        partition_column: Column of the stage's output, an integer, with the partition to write to; a field as
            ``_kafka.partition`` too. A null leaves the choice to the partitioner. None: the column ``partition`` of a
            raw or text output, else the partitioner chooses by the key, as Java's default partitioner does.

    The value does not contain the columns for timestamp, headers and partition, unless the schema of ``value_codec``
    declares a field of that name. It contains the key column, unless ``value_codec`` has a schema that does not declare
    it. A ``list[KafkaRecord]`` does not use these columns, because each record has its own key, timestamp, headers and
    partition.

    Raises:
        ConfigError: The topic name is invalid, a codec is invalid for its purpose, a column is not a column name, both
            ``key_column`` and ``key_expression`` are given, or the schema has a field ``_kafka``.
    """

    name: str
    key_column: str | None = None
    value_codec: Codec = field(default_factory=JsonCodec)
    key_codec: Codec = field(default_factory=RawCodec)
    timestamp_column: str | None = None
    create: TopicSpec | None = None
    key_expression: str | None = None
    headers_column: str | None = None
    partition_column: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not is_topic_name(self.name):
            msg = f"{self.name!r} is not a Kafka topic name"
            raise ConfigError(msg, fix="use 1 to 249 of the characters a-z A-Z 0-9 . _ -")
        for what, codec in (("value_codec", self.value_codec), ("key_codec", self.key_codec)):
            require_codec(codec, f"topic {self.name!r}: {what}")
        for what in _COLUMNS:
            column = getattr(self, what)
            if column is not None and (not isinstance(column, str) or not column):
                msg = f"topic {self.name!r}: {what} is {column!r}, which is not the name of a column"
                raise ConfigError(msg, fix=f'set {what}="COLUMN", or leave it out')
        expression = self.key_expression
        if expression is not None and (not isinstance(expression, str) or not expression.strip()):
            msg = f"topic {self.name!r}: key_expression is {expression!r}, which is not a SQL expression"
            raise ConfigError(msg, fix='set key_expression="upper(country)", or leave it out')
        if expression is not None and self.key_column is not None:
            msg = f"topic {self.name!r} has both key_column={self.key_column!r} and key_expression={expression!r}"
            raise ConfigError(msg, fix="remove one of them: a record has one key")
        if any(field.name.lower() == "_kafka" for field in self.value_codec.fields):
            msg = f"topic {self.name!r}: the schema has a field _kafka, which is reserved for the record's coordinates"
            raise ConfigError(msg, fix="read the topic with RawCodec() and decode it in the stage")

    def to_config(self) -> dict[str, Any]:
        """Return the declaration as JSON values."""
        return {
            "name": self.name,
            "key_column": self.key_column,
            "value_codec": codec_to_config(self.value_codec),
            "key_codec": codec_to_config(self.key_codec),
            "timestamp_column": self.timestamp_column,
            "create": None if self.create is None else asdict(self.create),
            "key_expression": self.key_expression,
            "headers_column": self.headers_column,
            "partition_column": self.partition_column,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> KafkaTopic:
        """Create a topic from the result of ``to_config``.

        Raises:
            ConfigError: The configuration is invalid.
        """
        try:
            create = config["create"]
            return cls(
                name=config["name"],
                key_column=config["key_column"],
                value_codec=codec_from_config(config["value_codec"]),
                key_codec=codec_from_config(config["key_codec"]),
                timestamp_column=config["timestamp_column"],
                create=None if create is None else TopicSpec(**create),
                # Absent in the metadata of releases before 0.2.
                key_expression=config.get("key_expression"),
                headers_column=config.get("headers_column"),
                partition_column=config.get("partition_column"),
            )
        except (KeyError, TypeError) as error:
            msg = f"{dict(config)!r} does not declare a topic"
            raise ConfigError(msg, fix="use KafkaTopic(...).as_metadata()") from error

    def as_metadata(self) -> dict[str, Any]:
        """Return asset metadata that declares this topic, for a plain ``@dg.asset`` with a KafkaIOManager."""
        settings = self.to_config()
        return {TOPIC: settings.pop("name"), TOPIC_SETTINGS: settings}

    def resolved(
        self, registry: RegistryClient | None, ids: Mapping[Part, Collection[bytes]] | None = None
    ) -> KafkaTopic:
        """Return the topic with the codecs to read it with. See `Codec.resolved`."""
        ids = ids or {}
        value = self.value_codec.resolved(registry, self.name, "value", ids.get("value"))
        return replace(
            self,
            value_codec=value,
            key_codec=self.key_codec.resolved(registry, self.name, "key", ids.get("key")),
        )

    def resolved_to_write(
        self, registry: RegistryClient | None, value: T.StructType | None = None, key: T.DataType | None = None
    ) -> KafkaTopic:
        """Return the topic with the codecs to write it with. See `Codec.resolved_to_write`."""
        topic = replace(self, value_codec=self.value_codec.resolved_to_write(registry, self.name, "value", value))
        if self.key_column is None and self.key_expression is None:
            return topic  # the keys are those of the source records, as they are
        return replace(topic, key_codec=self.key_codec.resolved_to_write(registry, self.name, "key", key))

    @property
    def is_framed(self) -> bool:
        """Whether records have ids of schemas."""
        return self.value_codec.is_framed or self.key_codec.is_framed

    def require_readable(self) -> None:
        """Raise if the topic's values cannot be decoded.

        Raises:
            ConfigError: A codec has no schema.
        """
        for what, codec in (("", self.value_codec), ("key_codec ", self.key_codec)):
            if not codec.has_schema:
                cls = type(codec).__name__
                msg = f"topic {self.name!r} cannot be read: its {what}{cls}() has no schema"
                raise ConfigError(msg, fix=f'declare the fields: {cls}("carrier STRING NOT NULL, distance INT")')
