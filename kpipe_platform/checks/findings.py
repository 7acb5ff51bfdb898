"""What a check found in each partition, as one result with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

Number = str | int | float | bool | None
# Rows of a table in the metadata, and lines of a description; Dagster stores the whole of both with every event.
_ROWS = 100
_LINES = 10


@dataclass(frozen=True)
class Finding:
    """What a check says of one partition.

    Args:
        where: Topic and partition, for example ``orders/3``.
        text: What was found, with numbers.
        numbers: The numbers by name.
        passed: False where the partition fails the check.
        known: False where a number that decides is not known; then the partition does not pass.
    """

    where: str
    text: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    passed: bool = True
    known: bool = True

    @property
    def is_good(self) -> bool:
        """True when the partition passes, and all that decides is known."""
        return self.passed and self.known


def result_of(findings: Sequence[Finding], severity: dg.AssetCheckSeverity) -> dg.AssetCheckResult:
    """One result for all partitions that a check looked at.

    Args:
        findings: One for each partition.
        severity: Severity of a failure; where no partition fails and some cannot be known, it is WARN.

    Returns:
        A result whose description says what is wrong in each partition. Metadata: partitions, failed, not_known; the
        numbers of a single partition by name, of several as a table.
    """
    failed = [f for f in findings if not f.passed]
    unknown = [f for f in findings if f.passed and not f.known]
    told = [*failed, *unknown] or findings
    lines = [f"{f.where}: {f.text}" for f in told[:_LINES]]
    if len(told) > _LINES:
        lines.append(f"and {len(told) - _LINES} more partitions")
    metadata: dict[str, Any] = {"partitions": len(findings), "failed": len(failed), "not_known": len(unknown)}
    if len(findings) == 1:
        metadata |= {name: _metadata(value) for name, value in findings[0].numbers.items()}
    elif findings:
        # What is wrong comes first, and is not what a cut leaves out.
        ordered = [*failed, *unknown, *(f for f in findings if f.is_good)]
        metadata["by_partition"] = dg.MetadataValue.table(_rows(ordered[:_ROWS]))
    return dg.AssetCheckResult(
        passed=not failed and not unknown,
        severity=severity if failed else dg.AssetCheckSeverity.WARN,
        description="\n".join(lines) or "there is no partition to look at",
        metadata=metadata,
    )


def _rows(findings: Sequence[Finding]) -> list[dg.TableRecord]:
    # Dagster reads a table's columns from its first row.
    names = list(dict.fromkeys(name for f in findings for name in f.numbers))
    return [
        dg.TableRecord({"partition": f.where, "passed": f.is_good, **{name: f.numbers.get(name) for name in names}})
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
