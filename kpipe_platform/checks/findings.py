"""Findings of an asset check in each partition, and their combination into one check result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from kpipe_platform.metadata_keys import BY_PARTITION, PARTITION_COUNT, PARTITIONS_FAILED, PARTITIONS_NOT_KNOWN, PREFIX

Number = str | int | float | bool | None
# Maximum numbers of rows of a metadata table and of lines of a description. Dagster stores both with every event.
_ROWS = 100
_LINES = 10


@dataclass(frozen=True)
class Finding:
    """The finding of a check for one partition.

    Args:
        where: Topic and partition, for example ``orders/3``.
        text: Description of the finding, with numbers.
        numbers: The numbers by metadata key.
        passed: False if the partition fails the check.
        known: False if a number that the check needs is unknown; the partition then does not pass.
    """

    where: str
    text: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    passed: bool = True
    known: bool = True

    @property
    def is_good(self) -> bool:
        """Whether the partition passes and all numbers that the check needs are known."""
        return self.passed and self.known


def result_of(findings: Sequence[Finding], severity: dg.AssetCheckSeverity) -> dg.AssetCheckResult:
    """Combine the findings of all checked partitions into one result.

    Args:
        findings: One finding for each partition.
        severity: Severity of a failure. If no partition fails but some are unknown, the severity is WARN.

    Returns:
        A result whose description lists the problem of each partition. Metadata: the number of partitions that were
        checked, that failed and that are unknown; and the numbers of a single partition, or a table of several.
    """
    failed = [f for f in findings if not f.passed]
    unknown = [f for f in findings if f.passed and not f.known]
    listed = [*failed, *unknown] or findings
    lines = [f"{f.where}: {f.text}" for f in listed[:_LINES]]
    if len(listed) > _LINES:
        lines.append(f"and {len(listed) - _LINES} more partitions")
    counts = {PARTITION_COUNT: findings, PARTITIONS_FAILED: failed, PARTITIONS_NOT_KNOWN: unknown}
    metadata: dict[str, Any] = {key: len(counted) for key, counted in counts.items()}
    if len(findings) == 1:
        metadata |= {name: _metadata(value) for name, value in findings[0].numbers.items()}
    elif findings:
        # Failures come first, so that truncation does not remove them.
        ordered = [*failed, *unknown, *(f for f in findings if f.is_good)]
        metadata[BY_PARTITION] = dg.MetadataValue.table(_rows(ordered[:_ROWS]))
    return dg.AssetCheckResult(
        passed=not failed and not unknown,
        severity=severity if failed else dg.AssetCheckSeverity.WARN,
        description="\n".join(lines) or "there are no partitions to check",
        metadata=metadata,
    )


def _rows(findings: Sequence[Finding]) -> list[dg.TableRecord]:
    # Dagster reads a table's columns from its first row.
    keys = list(dict.fromkeys(key for f in findings for key in f.numbers))
    return [
        dg.TableRecord(
            {
                "partition": f.where,
                "passed": f.is_good,
                **{key.removeprefix(PREFIX): f.numbers.get(key) for key in keys},
            }
        )
        for f in findings
    ]


def _metadata(value: Number) -> dg.MetadataValue[Any]:
    if value is None:
        return dg.MetadataValue.null()
    if isinstance(value, bool):
        return dg.MetadataValue.bool(value)
    if isinstance(value, int):
        return dg.MetadataValue.int(value)
    return dg.MetadataValue.float(value) if isinstance(value, float) else dg.MetadataValue.text(value)
