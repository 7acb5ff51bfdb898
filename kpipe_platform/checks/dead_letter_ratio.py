"""Check the share of failed records in the last materialization."""

from __future__ import annotations

import dagster as dg

from kpipe_platform import metadata_keys as keys
from kpipe_platform.checks.findings import Finding
from kpipe_platform.checks.partitions import CheckOptions, Scope, make_check
from kpipe_platform.errors import ConfigError
from kpipe_platform.partitions.groups import leading_key


def dead_letter_ratio_check(
    asset: dg.AssetsDefinition,
    *,
    max_dead_letter_ratio: float,
    name: str | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    blocking: bool = False,
    partitioned: bool = True,
) -> dg.AssetChecksDefinition:
    """Create a check that fails if too many records of the last materialization were dead-lettered or skipped.

    The check runs after the outputs and offsets were committed. To stop a run before the commit, use
    ``@kafka_asset(max_dead_letter_ratio=...)``.

    Args:
        asset: The Kafka asset.
        max_dead_letter_ratio: Maximum share, 0 to 1.
        name: Name of the check; None: dead_letter_ratio.
        severity: Severity of a failure. An unknown result fails with severity WARN.
        blocking: Whether downstream assets wait for the check.
        partitioned: Whether Dagster keeps a result for each partition. False: one check for the whole asset, which a
            schedule can run without a partition.

    Returns:
        The check ``dead_letter_ratio``. Numbers per partition: records_read, dead_letters, records_skipped,
        dead_letter_ratio (null if no record was read).

    Raises:
        ConfigError: The share is out of range.
    """
    if not 0 <= max_dead_letter_ratio <= 1:
        msg = f"dead_letter_ratio_check: max_dead_letter_ratio is {max_dead_letter_ratio:g}, not between 0 and 1"
        raise ConfigError(msg, fix="set max_dead_letter_ratio to a number from 0 to 1")

    def evaluate(scope: Scope) -> list[Finding]:
        whole = leading_key(asset).to_user_string()
        return [
            _finding(whole if key is None else f"partition {key}", found, max_dead_letter_ratio)
            for key, found in scope.materialized()
        ]

    description = (
        f"At most {max_dead_letter_ratio:.4g} of the last materialization's records were dead-lettered or skipped."
    )
    return make_check(
        asset,
        "dead_letter_ratio",
        description,
        evaluate,
        CheckOptions(name, severity=severity, blocking=blocking, partitioned=partitioned),
        reads_brokers=False,
    )


def _finding(where: str, found: list[dg.AssetMaterialization], max_dead_letter_ratio: float) -> Finding:
    if not found:
        return Finding(where, "there is no materialization yet")
    stored = keys.stored_metadata(found[0].metadata)
    counts = (keys.RECORDS_READ, keys.DEAD_LETTERS, keys.RECORDS_SKIPPED)
    read, dead, skipped = (int(str(stored[key].value)) for key in counts)
    failed = dead + skipped
    ratio = failed / read if read else None
    text = "the last materialization read no records"
    if ratio is not None:
        text = f"{failed:,} of {read:,} records failed ({ratio:.2%}): {dead:,} dead-lettered, {skipped:,} skipped"
    passed = ratio is None or ratio <= max_dead_letter_ratio
    return Finding(
        where=where,
        text=text if passed else f"{text}; limit {max_dead_letter_ratio:.2%}",
        numbers={
            keys.RECORDS_READ: read,
            keys.DEAD_LETTERS: dead,
            keys.RECORDS_SKIPPED: skipped,
            keys.DEAD_LETTER_RATIO: None if ratio is None else round(ratio, 6),
        },
        passed=passed,
    )
