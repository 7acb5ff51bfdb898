"""Rules of a stage as asset checks, from the counts of ``expect`` in the last materialization."""

# No "from __future__ import annotations": Dagster reads the type of the check's context.

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.metadata_keys import (
    BY_PARTITION,
    RECORDS_CHECKED,
    RECORDS_FAILED,
    RECORDS_READ,
    RULES,
    stored_metadata,
)
from kpipe_platform.partitions.groups import leading_key
from kpipe_platform.partitions.materializations import last_materialization, own_materializations

# Maximum number of materializations, over all partitions, that are searched for the names of a stage's rules.
_MAX_SEARCHED = 100


def rule_checks(
    asset: dg.AssetsDefinition, rules: str | Sequence[str], *, max_failed_ratio: float = 0.0, blocking: bool = False
) -> list[dg.AssetChecksDefinition]:
    """Create one asset check for each of a stage's rules.

    A check passes if at most ``max_failed_ratio`` of the records failed the rule, in the last materialization of the
    checked partition. A rule that warns fails with severity WARN, any other with ERROR. A check also fails if none of
    the asset's last materializations evaluated the rule, because its name is then wrong. If no materialization has read
    a record, the check passes.

    Args:
        asset: The asset whose stage calls ``expect``.
        rules: Names of rules.
        max_failed_ratio: Maximum share of the records that may fail a rule, from 0 to 1.
        blocking: Whether downstream assets wait for the check.

    Returns:
        Checks for ``Definitions(asset_checks=...)``. Each has the name of its rule, with ``_`` for every character
        other than an ASCII letter or digit.

    Raises:
        ConfigError: ``rules`` is empty, or ``max_failed_ratio`` is not between 0 and 1.
    """
    names = [rules] if isinstance(rules, str) else list(rules)
    if not names:
        msg = f"rule_checks({leading_key(asset).to_user_string()}) has no rules"
        raise ConfigError(msg, fix='pass the names of rules, for example rule_checks(asset, ["positive amount"])')
    if not 0 <= max_failed_ratio <= 1:
        msg = f"rule_checks: max_failed_ratio is {max_failed_ratio}, not between 0 and 1"
        raise ConfigError(msg, fix="set max_failed_ratio to a number from 0 to 1")
    return [_rule_check(asset, name, max_failed_ratio, blocking) for name in names]


def _rule_check(
    asset: dg.AssetsDefinition, rule: str, max_failed_ratio: float, blocking: bool
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=leading_key(asset),
        name="".join(c if c.isalnum() and c.isascii() else "_" for c in rule),
        description=f"Rule {rule!r} of the stage holds.",
        blocking=blocking,
        partitions_def=asset.partitions_def,
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        keys = context.op_execution_context.partition_keys if context.op_execution_context.has_partition_key else None
        found = list(_counts(context.instance, leading_key(asset), rule, keys))
        if all(row is None for _, row in found):
            names = _names_of_rules(context.instance, leading_key(asset))
            if names is not None and rule not in names:
                return _unknown(rule, names)
        return _result(rule, found, max_failed_ratio)

    return check


def _counts(
    instance: dg.DagsterInstance, key: dg.AssetKey, rule: str, partitions: Iterable[str] | None
) -> Iterable[tuple[str | None, Mapping[str, Any] | None]]:
    """Yield the rule's counts in the last materialization of each partition; None if it does not contain the rule."""
    for partition in partitions if partitions is not None else [None]:
        event = last_materialization(instance, key, partition)
        yield partition, next((row for row in _rows(event) if row["rule"] == rule), None)


def _rows(event: dg.AssetMaterialization | None) -> list[Mapping[str, Any]]:
    table = stored_metadata(event.metadata).get(RULES) if event is not None else None
    return [row.data for row in table.records] if isinstance(table, dg.TableMetadataValue) else []


def _names_of_rules(instance: dg.DagsterInstance, key: dg.AssetKey) -> set[str] | None:
    """Return the rules that the asset's last materializations evaluated; None if none of them read a record."""
    records = islice(own_materializations(instance, key), _MAX_SEARCHED)
    events = [record.asset_materialization for record in records if record.asset_materialization is not None]
    read = [event for event in events if _read(event) or _rows(event)]
    return {str(row["rule"]) for event in read for row in _rows(event)} if read else None


def _read(event: dg.AssetMaterialization) -> int:
    """Return the number of records that a materialization read."""
    count = stored_metadata(event.metadata).get(RECORDS_READ)
    return int(count.value or 0) if isinstance(count, dg.IntMetadataValue) else 0


def _unknown(rule: str, names: Iterable[str]) -> dg.AssetCheckResult:
    evaluated = ", ".join(map(repr, sorted(names))) or "none"
    text = (
        f"the stage has no rule {rule!r}; the last materializations evaluated these rules: {evaluated}\n"
        f"  How to fix: correct the name in rule_checks, or call expect(..., name={rule!r}) in the stage"
    )
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.ERROR, description=text)


def _result(
    rule: str, found: Sequence[tuple[str | None, Mapping[str, Any] | None]], max_failed_ratio: float
) -> dg.AssetCheckResult:
    counted = [(partition, row) for partition, row in found if row is not None]
    checked = sum(int(row["checked"]) for _, row in counted)
    failed = sum(int(row["failed"]) for _, row in counted)
    warns = bool(counted) and all(row["action"] == "warn" for _, row in counted)
    text = f"rule {rule!r} failed for {failed:,} of {checked:,} records"
    if not counted:
        # An empty slice calls no stage, so its rules have no counts.
        text = f"the last materialization evaluated rule {rule!r} for no records"
    metadata: dict[str, Any] = {RECORDS_CHECKED: checked, RECORDS_FAILED: failed}
    rows = [(partition, row) for partition, row in counted if partition is not None]
    if len(rows) > 1:
        metadata[BY_PARTITION] = dg.MetadataValue.table(
            [
                dg.TableRecord({"partition": str(partition), "checked": row["checked"], "failed": row["failed"]})
                for partition, row in rows
            ]
        )
    return dg.AssetCheckResult(
        passed=failed <= max_failed_ratio * checked,
        severity=dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR,
        description=text,
        metadata=metadata,
    )
