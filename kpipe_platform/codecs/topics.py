"""Several topics as the destination of one asset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError
from kpipe_platform.metadata_keys import TOPICS


@dataclass(frozen=True)
class KafkaTopics:
    """Several topics that one asset writes. A column of the stage's output names the topic of each row.

    All topics are written in the transaction of the slice, with its dead letters and offsets. A row whose column is
    null or names another topic is a fault of its record (kind ``topic``, component ``destination``).

    Args:
        by: Column of the stage's output, a string; a field as ``"customer.country"`` too. The values do not contain it,
            unless the schema of a topic's ``value_codec`` declares a field of that name.
        topics: The topics by the column's values, or a sequence of topics, whose names are the column's values. Each
            topic has its own codec, key and columns. A topic whose ``value_codec`` has a schema gets the columns that
            the schema declares; a topic without one gets all columns.

    Raises:
        ConfigError: ``by`` is not a column name, there are no topics, or a topic is given twice.
    """

    by: str
    topics: Mapping[str, KafkaTopic] | Sequence[KafkaTopic]

    def __post_init__(self) -> None:
        if not isinstance(self.by, str) or not self.by:
            msg = f"KafkaTopics(by={self.by!r}): expected the name of a column"
            raise ConfigError(msg, fix='set by="COLUMN", the column that names the topic of each row')
        given = self.topics
        if isinstance(given, Sequence) and not isinstance(given, str):
            given = {topic.name: topic for topic in given if isinstance(topic, KafkaTopic)}
        if (
            not isinstance(given, Mapping)
            or len(given) != len(self.topics)
            or not all(isinstance(name, str) and isinstance(topic, KafkaTopic) for name, topic in given.items())
        ):
            msg = f"KafkaTopics(by={self.by!r}): topics is {self.topics!r}"
            raise ConfigError(
                msg,
                fix='set topics={"VALUE OF THE COLUMN": KafkaTopic("name", ...), ...}, or a list of different topics',
            )
        require_distinct(f"KafkaTopics(by={self.by!r})", given.values())
        object.__setattr__(self, "topics", dict(given))

    @property
    def by_value(self) -> Mapping[str, KafkaTopic]:
        """The topics by the values of the column ``by``."""
        assert isinstance(self.topics, Mapping)  # noqa: S101  # see __post_init__
        return self.topics

    def to_config(self) -> dict[str, Any]:
        """Return the declaration as JSON values."""
        return {"by": self.by, "topics": {value: topic.to_config() for value, topic in self.by_value.items()}}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> KafkaTopics:
        """Create the topics from the result of ``to_config``.

        Raises:
            ConfigError: The configuration is invalid.
        """
        try:
            topics = {value: KafkaTopic.from_config(topic) for value, topic in config["topics"].items()}
            return cls(config["by"], topics)
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"{config!r} does not declare topics"
            raise ConfigError(msg, fix="use KafkaTopics(...).as_metadata()") from error

    def as_metadata(self) -> dict[str, Any]:
        """Return asset metadata that declares these topics, for a plain ``@dg.asset`` with a KafkaIOManager."""
        return {TOPICS: self.to_config()}


@dataclass(frozen=True)
class Destination:
    """Where an asset's output is written.

    Args:
        topics: The topics, at least one.
        by: Column that names the topic of each row; None: all rows of an output go to one topic.
        names: For several topics: the name of each, as the column or the stage's result has it. Empty for one topic.
    """

    topics: tuple[KafkaTopic, ...]
    by: str | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, declared: KafkaTopic | KafkaTopics) -> Destination:
        """Return the destination that an asset declares."""
        if isinstance(declared, KafkaTopic):
            return cls((declared,))
        return cls(tuple(declared.by_value.values()), declared.by, tuple(declared.by_value))

    @classmethod
    def of_outputs(cls, topics: Mapping[str, KafkaTopic]) -> Destination:
        """Return the destination of a multi-asset: a topic for each of its outputs, by the output's name."""
        return cls(tuple(topics.values()), names=tuple(topics))

    @property
    def has_outputs(self) -> bool:
        """Whether the stage returns rows for each topic, by the topic's name."""
        return bool(self.names) and self.by is None


def require_distinct(where: str, topics: Any) -> None:
    """Refuse a topic that is given twice: its records would have no defined order.

    Raises:
        ConfigError: A topic is given twice.
    """
    names = [topic.name for topic in topics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names:
        msg = f"{where} has no topic"
        raise ConfigError(msg, fix='declare at least one: KafkaTopic("name", ...)')
    if twice:
        msg = f"{where} has topic {', '.join(map(repr, twice))} more than once"
        raise ConfigError(msg, fix="give each topic once; to write several kinds of rows to it, return one DataFrame")
