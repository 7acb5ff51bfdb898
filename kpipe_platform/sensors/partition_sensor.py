"""``kafka_partition_sensor``: registers a topic's new partitions as Dagster partitions."""

from __future__ import annotations

import dagster as dg

from kpipe_platform.assets.source import Source, declared_metadata, require_source
from kpipe_platform.errors import ConfigError, KpipeError
from kpipe_platform.io_managers.step import topic_of
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.deadline import Deadline
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.metadata_keys import TOPIC
from kpipe_platform.partitions.definition import kafka_partitions
from kpipe_platform.policies.bounds import is_positive
from kpipe_platform.resources.lookup import source_of
from kpipe_platform.sensors.tick.brokers import tick_settings
from kpipe_platform.sensors.tick.growth import compare, known_keys, shrunk
from kpipe_platform.sensors.tick.report import counted


def kafka_partition_sensor(
    topic_asset: Source,
    *,
    name: str | None = None,
    deadline_s: float = 10.0,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    resource_key: str = "kafka_io_manager",
    description: str | None = None,
) -> dg.SensorDefinition:
    """Create a sensor that registers a topic's new partitions and requests no runs.

    Use it for assets without a ``kafka_offset_sensor``, which registers new partitions too. For a Kafka asset, the
    sensor registers the partitions of the topic that the asset writes.

    Args:
        topic_asset: A topic asset or a Kafka asset with dynamic partitions.
        name: Sensor name; None: the asset key with the suffix ``_partitions``.
        deadline_s: Deadline for a tick's broker calls, seconds. A tick that exceeds it is skipped with the reason.
        minimum_interval_seconds: Minimum time between ticks, seconds.
        default_status: Initial status of the sensor.
        resource_key: Resource key of the KafkaSource, or of the KafkaIOManager that has one.
        description: Text for the UI.

    Raises:
        ConfigError: The asset declares no topic, its partitions are not dynamic, or the deadline is not above 0.
    """
    require_source(topic_asset, "kafka_partition_sensor(topic_asset)")
    shown = topic_asset.key.to_user_string()
    metadata = declared_metadata(topic_asset)
    definition = topic_asset.partitions_def
    if TOPIC not in metadata:
        msg = f"kafka_partition_sensor: asset {shown} declares no topic"
        raise ConfigError(msg, fix="pass an asset made by kafka_topic_asset(...), or a Kafka asset")
    if not isinstance(definition, dg.DynamicPartitionsDefinition):
        msg = f"kafka_partition_sensor: asset {shown} has no dynamic partitions, so none can be registered"
        raise ConfigError(msg, fix="omit partitions= from kafka_topic_asset(...), so that they follow the topic")
    if not is_positive(deadline_s):
        msg = f"kafka_partition_sensor: deadline_s is {deadline_s}, not a finite number above 0"
        raise ConfigError(msg, fix="set deadline_s to a number of seconds, for example 10")
    topic = topic_of(metadata, topic_asset.key).name
    # Not the asset's partitions_def: a Kafka asset has the partitions of the topic that it reads.
    followed = kafka_partitions(topic)
    deadline = Deadline(deadline_s, f"describe topic {topic}")

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        settings = tick_settings(source_of(context.resources, resource_key, "a sensor").connection_settings, deadline_s)
        try:
            count = deadline.run(lambda: _count(settings, topic))
        except ConfigError:
            raise
        except KpipeError as error:
            context.log.warning("tick on topic %s skipped: %s", topic, error)
            return dg.SensorResult(skip_reason=str(error))
        growth = compare(*known_keys(followed, context.instance), count)
        gone = [str(shrunk(topic, number, count, growth.name)) for number in growth.gone]
        if gone:
            context.log.warning("%s", counted(gone))
        reason = f"topic {topic}: partitions {count:,}, new {len(growth.new):,}"
        return dg.SensorResult(
            skip_reason="\n".join([reason, *([counted(gone)] if gone else [])]),
            dynamic_partitions_requests=growth.requests(),
        )

    return dg.SensorDefinition(
        name=name or "__".join(topic_asset.key.path) + "_partitions",
        evaluation_fn=evaluate,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={resource_key},
        description=description or f"Registers new partitions of topic {topic}.",
    )


def _count(settings: ConnectionSettings, topic: str) -> int:
    with Clients(settings) as clients:
        return describe_topics(clients, [topic])[topic].partitions
