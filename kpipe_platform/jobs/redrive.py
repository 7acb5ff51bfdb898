"""Redrive as a Dagster job. Its configuration has the options of `kpipe dlq redrive`."""

# No `from __future__ import annotations`: Dagster needs the classes of an op's arguments, not their names.
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from kpipe_platform import metadata_keys as keys
from kpipe_platform.dead_letters.read.filters import make_filter
from kpipe_platform.dead_letters.redrive.decide import Action, Decision
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.dead_letters.redrive.redrive import redrive
from kpipe_platform.resources.connection import KafkaConnection
from kpipe_platform.resources.known_names import KnownNames

RESOURCE_KEY = "kafka_connection"
"""Resource key of the connection if ``redrive_job`` is called without one."""

# Maximum number of decisions in the run's log. The counts in the output's metadata include all of them.
_LOGGED = 100

# The fields of the result that are shown in the output's metadata.
_FACTS = {
    keys.RECORDS_READ: "read",
    keys.RECORDS_SENT: "sent",
    keys.RECORDS_PARKED: "parked",
    keys.RECORDS_KEPT: "kept",
    keys.RECORDS_LEFT_OUT: "left_out",
    keys.RECORDS_DONE_BEFORE: "done_before",
    keys.OFFSETS_EXPIRED: "expired",
    keys.RECORDS_SHORT_LIVED: "short_lived",
    keys.LIMITED: "limited",
}
_DETAILS = {keys.SENT_TO: "sent_to", keys.KEPT_BY_REASON: "kept_by_reason", keys.BY_PARTITION: "partitions"}


class RedriveConfig(KnownNames):
    """Configuration of a redrive; see `kpipe_platform.dead_letters.redrive.options.RedriveOptions`."""

    topic: str = Field(description="the dead-letter topic")
    topics: list[str] = Field(default=[], description="filter: patterns of the original topic")
    partitions: list[int] = Field(default=[], description="filter: original partition")
    since: str | None = Field(default=None, description="filter: dead-lettered at this time or later, ISO 8601")
    until: str | None = Field(default=None, description="filter: dead-lettered before this time, ISO 8601")
    exceptions: list[str] = Field(default=[], description="filter: patterns of the exception or its cause")
    rules: list[str] = Field(default=[], description="filter: patterns of the failed rule or the fault kind")
    assets: list[str] = Field(
        default=[], description="filter: patterns of the asset, connector or group that wrote the dead letter"
    )
    at: list[str] = Field(default=[], description="filter: PARTITION@OFFSET of single dead letters")
    dry_run: bool = Field(default=False, description="report what would be done, without moving anything")
    limit: int | None = Field(default=None, ge=1, description="stop after sending or parking this many dead letters")
    max_records_per_s: float | None = Field(default=None, gt=0, description="maximum number of records per second")
    to_topic: str | None = Field(default=None, description="destination topic, instead of the original topics")
    partitioning: Literal["original", "by_key"] = Field(
        default="original",
        description="original: the record's original partition; by_key: the partition that Kafka chooses by key",
    )
    max_attempts: int = Field(default=3, ge=1, description="maximum number of redrives of a record before it is parked")
    parking_topic: str | None = Field(default=None, description="topic for parked records; None: {topic}.parking")
    create_parking_topic: bool = Field(
        default=False, description="create the parking topic when it is needed and does not exist"
    )
    redacted: Literal["keep", "from_source", "as_is"] = Field(
        default="keep",
        description="what to do with redacted payloads. keep: leave them in the dead-letter topic; from_source: send "
        "the original bytes from the source topic; as_is: send the redacted bytes",
    )
    start: Literal["earliest", "error"] = Field(
        default="earliest",
        description="where a group without an offset starts; error: the redrive fails without an offset",
    )
    batch_records: int = Field(default=500, ge=1, description="maximum number of dead letters per transaction")
    dead_letter_partitions: list[int] = Field(default=[], description="partitions of the dead-letter topic; empty: all")
    group: str | None = Field(
        default=None, description="consumer group that stores the progress; None: {topic}.redrive"
    )

    def options(self) -> RedriveOptions:
        """Convert the configuration to the options of the redrive.

        Raises:
            ConfigError: A value is invalid.
        """
        same = (
            *("topic", "dry_run", "limit", "max_records_per_s", "to_topic", "partitioning", "max_attempts"),
            *("parking_topic", "create_parking_topic", "redacted", "start", "batch_records", "group"),
        )
        wanted = make_filter(
            topics=self.topics,
            partitions=self.partitions,
            since=self.since,
            until=self.until,
            exceptions=self.exceptions,
            rules=self.rules,
            assets=self.assets,
            places=self.at,
        )
        values = {name: getattr(self, name) for name in same}
        return RedriveOptions(filter=wanted, dead_letter_partitions=tuple(self.dead_letter_partitions), **values)


def redrive_job(
    connection: KafkaConnection | None = None,
    *,
    name: str = "redrive_dead_letters",
    default: RedriveConfig | None = None,
    **job_options: Any,
) -> dg.JobDefinition:
    """Create a job that redrives a dead-letter topic.

    The job has one op, ``redrive``, with a `RedriveConfig`. Its output is the complete result as JSON values; the
    counts are in the output's metadata. If a run fails or is terminated, run the job again.

    Args:
        connection: Connection to the brokers; None: the resource ``kafka_connection`` of the definitions.
        name: Name of the job.
        default: Configuration of runs without their own, for example those of a schedule.
        **job_options: Further arguments of ``dagster.job``: ``description``, ``tags``, ``op_retry_policy``.

    Returns:
        The job.
    """

    @dg.op(
        name="redrive", out=dg.Out(dict, description="result of the redrive, as printed by kpipe dlq redrive --json")
    )
    def redrive_op(
        context: dg.OpExecutionContext, config: RedriveConfig, kafka_connection: KafkaConnection
    ) -> dg.Output[dict[str, Any]]:
        return _run(context, config, kafka_connection)

    defaults: dict[str, Any] = {}
    if connection is not None:
        defaults["resource_defs"] = {RESOURCE_KEY: connection}
    if default is not None:
        defaults["config"] = dg.RunConfig(ops={"redrive": default})
    job_options.setdefault("description", "Sends dead letters back to their topics and partitions, each exactly once.")

    @dg.job(name=name, **defaults, **job_options)
    def job() -> None:
        redrive_op()

    return job


def _run(
    context: dg.OpExecutionContext, config: RedriveConfig, connection: KafkaConnection
) -> dg.Output[dict[str, Any]]:
    logged = 0

    def log(decision: Decision) -> None:
        nonlocal logged
        if (config.dry_run or decision.action is Action.KEEP) and logged < _LOGGED:
            logged += 1
            what = (str(decision.action), decision.found.place, decision.target or "stays", decision.detail or "")
            context.log.info("%s %s: %s. %s", *what)

    result = redrive(connection.settings, config.options(), on_decision=log)
    for partition in result.partitions:
        if partition.is_new and partition.moved:
            context.log.warning(
                "group %s had no offset in partition %d: this is its first redrive, or the brokers deleted its offsets",
                *(result.group, partition.partition),
            )
    if result.short_lived:
        context.log.warning(
            "%d records are older than the retention.ms of their topic, so the brokers will delete them again. To keep "
            "them, raise the topic's retention.ms",
            result.short_lived,
        )
    found = result.to_json()
    metadata: dict[str, Any] = {key: found[name] for key, name in _FACTS.items()}
    metadata |= {key: dg.MetadataValue.json(found[name]) for key, name in _DETAILS.items()}
    metadata |= {
        keys.DRY_RUN: result.dry_run,
        keys.DEAD_LETTER_TOPIC: result.topic,
        keys.CONSUMER_GROUP: result.group,
    }
    return dg.Output(found, metadata=metadata)
