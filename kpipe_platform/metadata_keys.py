"""Keys of the metadata that kpipe writes to Dagster and reads from it.

All begin with ``kpipe/``. Where Dagster has a key for the same fact (``dagster/row_count``, ``dagster/column_schema``,
``dagster/uri``), kpipe writes that key. Units are suffixes: ``_s``, ``_ms``. ``docs/reference/metadata.md`` describes
each key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_Value = TypeVar("_Value")

PREFIX = "kpipe/"

# Counts of records, in several kinds of events.
RECORDS_READ = "kpipe/records_read"
RECORDS_WRITTEN = "kpipe/records_written"
DEAD_LETTERS = "kpipe/dead_letters"
RECORDS_SKIPPED = "kpipe/records_skipped"

# Facts in several kinds of events.
TOPIC = "kpipe/topic"
TOPIC_ID = "kpipe/topic_id"
CONSUMER_GROUP = "kpipe/consumer_group"
LOG_START = "kpipe/log_start"
LOG_END = "kpipe/log_end"
COMMITTED = "kpipe/committed"
LAG = "kpipe/lag"
RETENTION = "kpipe/retention"
TIME_TO_LOSS_S = "kpipe/time_to_loss_s"
PARTITION_COUNT = "kpipe/partition_count"
BY_PARTITION = "kpipe/by_partition"

# Materializations of assets that read a topic.
DURATION_S = "kpipe/duration_s"
RECORDS_PER_S = "kpipe/records_per_s"
LATENCY_P50_MS = "kpipe/latency_p50_ms"
LATENCY_P95_MS = "kpipe/latency_p95_ms"
SLICE_COUNT = "kpipe/slice_count"
SLICES = "kpipe/slices"
LOST_RANGES = "kpipe/lost_ranges"
RESUMED_RANGES = "kpipe/resumed_ranges"
DEAD_LETTER_REASONS = "kpipe/dead_letter_reasons"
RULES = "kpipe/rules"
PREVIEW = "kpipe/preview"
RECORDS_BY_TOPIC = "kpipe/records_by_topic"
ISOLATION = "kpipe/isolation"
TRANSACTIONS_PER_SLICE = "kpipe/transactions_per_slice"
STEPS = "kpipe/steps"
INSTANCE = "kpipe/instance"
WORKER = "kpipe/worker"
LEASE = "kpipe/lease"
RANGES = "kpipe/ranges"

# Observations of an asset's partition events.
EVENT = "kpipe/event"
TIME = "kpipe/time"
PARTITION = "kpipe/partition"
OFFSET_RANGE = "kpipe/offset_range"
START_OFFSET = "kpipe/start_offset"
END_OFFSET = "kpipe/end_offset"
REASON = "kpipe/reason"
RUN = "kpipe/run"

# Observations of a topic.
OFFSET_COUNT = "kpipe/offset_count"
OFFSETS_PER_S = "kpipe/offsets_per_s"
SINCE_S = "kpipe/since_s"
CONSUMER_GROUPS = "kpipe/consumer_groups"
TIMESTAMP_TYPE = "kpipe/timestamp_type"

# Materializations of a dead-letter asset.
OLDEST = "kpipe/oldest"
NEWEST = "kpipe/newest"
REASONS = "kpipe/reasons"
REASONS_CHART = "kpipe/reasons_chart"
BY_ASSET = "kpipe/by_asset"
BY_HOUR = "kpipe/by_hour"
OFFSETS = "kpipe/offsets"

# Results of asset checks.
PARTITIONS_FAILED = "kpipe/partitions_failed"
PARTITIONS_NOT_KNOWN = "kpipe/partitions_not_known"
RECORDS_CHECKED = "kpipe/records_checked"
RECORDS_FAILED = "kpipe/records_failed"
DEAD_LETTER_RATIO = "kpipe/dead_letter_ratio"
OLDEST_OFFSET = "kpipe/oldest_offset"
OLDEST_AGE_S = "kpipe/oldest_age_s"
OFFSETS_LOST = "kpipe/offsets_lost"
MATERIALIZATIONS = "kpipe/materializations"
BREAKS = "kpipe/breaks"
LAST_END = "kpipe/last_end"
DRIFT = "kpipe/drift"

# Output of the redrive job.
RECORDS_SENT = "kpipe/records_sent"
RECORDS_PARKED = "kpipe/records_parked"
RECORDS_KEPT = "kpipe/records_kept"
RECORDS_LEFT_OUT = "kpipe/records_left_out"
RECORDS_DONE_BEFORE = "kpipe/records_done_before"
OFFSETS_EXPIRED = "kpipe/offsets_expired"
RECORDS_SHORT_LIVED = "kpipe/records_short_lived"
SENT_TO = "kpipe/sent_to"
KEPT_BY_REASON = "kpipe/kept_by_reason"
LIMITED = "kpipe/limited"
DRY_RUN = "kpipe/dry_run"
DEAD_LETTER_TOPIC = "kpipe/dead_letter_topic"

# Definitions of assets.
TOPIC_SETTINGS = "kpipe/topic_settings"
TOPICS = "kpipe/topics"
MULTI_ASSET = "kpipe/multi_asset"
VALUE_CODEC = "kpipe/value_codec"
KEY_CODEC = "kpipe/key_codec"
ON_FAULT = "kpipe/on_fault"
LIMIT = "kpipe/max_dead_letters"
SCALING = "kpipe/scaling"
DEAD_LETTER_TABLE = "kpipe/dead_letter_table"

# Definitions of inputs.
READ = "kpipe/read"
FORM = "kpipe/form"

# Names of the keys that kpipe reads from stored events, before 0.2.
_BEFORE_0_2 = {
    RECORDS_READ: "records_read",
    DEAD_LETTERS: "dead_letters",
    RECORDS_SKIPPED: "skipped",
    RULES: "rules",
    CONSUMER_GROUP: "consumer_group",
    LOG_END: "end",
    TOPIC_ID: "topic_id",
}


def stored_metadata(metadata: Mapping[str, _Value]) -> Mapping[str, _Value]:
    """Return the metadata of a stored materialization or observation by the keys above.

    Releases before 0.2 wrote most keys without the prefix.

    Args:
        metadata: Metadata of an event that kpipe wrote, of any release.
    """
    # Each event of today has one of these. What a stage adds to it may have an old name, and is not kpipe's.
    if CONSUMER_GROUP in metadata or LOG_END in metadata:
        return metadata
    return {**metadata, **{key: metadata[old] for key, old in _BEFORE_0_2.items() if old in metadata}}
