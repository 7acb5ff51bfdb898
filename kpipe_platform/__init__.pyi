"""The public names of kpipe platform, for type checkers; `__init__.py` loads each from here at its first use."""

from .assets import (
    dead_letter_asset as dead_letter_asset,
    kafka_asset as kafka_asset,
    kafka_multi_asset as kafka_multi_asset,
    kafka_topic_asset as kafka_topic_asset,
    table_input as table_input,
)
from .checks import (
    dead_letter_ratio_check as dead_letter_ratio_check,
    lag_check as lag_check,
    offset_contiguity_check as offset_contiguity_check,
    retention_check as retention_check,
    rule_checks as rule_checks,
)
from .codecs import (
    AvroCodec as AvroCodec,
    Codec as Codec,
    ConnectJsonCodec as ConnectJsonCodec,
    DebeziumCodec as DebeziumCodec,
    DecodeFault as DecodeFault,
    EncodeFault as EncodeFault,
    JsonCodec as JsonCodec,
    JsonSchemaCodec as JsonSchemaCodec,
    ProtobufCodec as ProtobufCodec,
    RawCodec as RawCodec,
    TextCodec as TextCodec,
)
from .codecs.connect.rows import current_rows as current_rows
from .codecs.topic import KafkaTopic as KafkaTopic
from .codecs.topics import KafkaTopics as KafkaTopics
from .errors import KpipeError as KpipeError
from .io_managers import (
    KafkaIOManager as KafkaIOManager,
    OffsetCommittingIOManager as OffsetCommittingIOManager,
    current_slice as current_slice,
)
from .jobs import (
    PauseConfig as PauseConfig,
    RedriveConfig as RedriveConfig,
    pause_job as pause_job,
    redrive_job as redrive_job,
)
from .kafka.model.offsets import OffsetRange as OffsetRange
from .kafka.ownership.owner import ConsumerGroupOwnership as ConsumerGroupOwnership
from .kafka.model.records import KafkaRecord as KafkaRecord
from .kafka.admin.topics import TopicSpec as TopicSpec
from .observability import PartitionEvent as PartitionEvent, PartitionEventKind as PartitionEventKind
from .partitions.definition import (
    kafka_partitions as kafka_partitions,
    register_kafka_partitions as register_kafka_partitions,
)
from .partitions.coordinator import KafkaRunCoordinator as KafkaRunCoordinator
from .partitions.pools import kafka_pool as kafka_pool
from .partitions.state import PartitionState as PartitionState, partition_states as partition_states
from .policies.actions import FaultPolicies as FaultPolicies, FaultPolicy as FaultPolicy
from .policies.faults import FaultAction as FaultAction
from .policies.retry import RecordRetryPolicy as RecordRetryPolicy
from .resources.connection import KafkaConnection as KafkaConnection
from .resources.destination import (
    KafkaDeadLetterDestination as KafkaDeadLetterDestination,
    KafkaDestination as KafkaDestination,
)
from .resources.ownership import PartitionOwnership as PartitionOwnership
from .resources.scaling import (
    ExecutionMode as ExecutionMode,
    PartitionScaling as PartitionScaling,
    RebalanceMode as RebalanceMode,
)
from .resources.schema_registry import SchemaRegistry as SchemaRegistry
from .resources.source import KafkaSource as KafkaSource
from .resources.spark import SparkEngine as SparkEngine
from .sensors import (
    Backpressure as Backpressure,
    kafka_offset_sensor as kafka_offset_sensor,
    kafka_partition_sensor as kafka_partition_sensor,
)
from .spark.stage.map_records import map_records as map_records
from .spark.stage.rules import Rule as Rule, expect as expect, expect_all as expect_all

__version__: str
