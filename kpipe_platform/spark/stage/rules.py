"""Rules of a stage: conditions that each record must meet, several in one pass.

A record meets a rule only if the rule's condition is true. Null is not true: for a nullable column, the condition must
handle null, for example ``arr_delay is null or arr_delay > -1000``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.faults import Component
from kpipe_platform.spark.failures import root_cause
from kpipe_platform.spark.stage.notes import current_notes

RuleAction = Literal["warn", "skip", "dead_letter", "stop"]
_ACTIONS = ("warn", "skip", "dead_letter", "stop")
# If a record fails several rules, the most severe action applies. "" is the asset's own action, which may be to stop.
_GRAVEST = ("stop", "", "dead_letter", "skip")
_FAILED = "_kpipe_failed_rules"


@dataclass(frozen=True)
class Rule:
    """A condition that each record must meet.

    Args:
        name: Name of the rule in the metadata, in dead letters and in ``rule_checks``.
        condition: SQL text, or a boolean Column.
        action: What happens to a record that fails the rule: ``warn`` (counted and kept), ``skip``, ``dead_letter`` or
            ``stop``. Default: the asset's action for stage faults.
    """

    name: str
    condition: str | Column
    action: RuleAction | None = None


def expect(df: DataFrame, condition: str | Column, *, name: str, action: RuleAction | None = None) -> DataFrame:
    """Keep the records that meet a rule. The action decides what happens to the others.

    Args:
        df: Records, with ``_kafka`` unless the action is ``warn``.
        condition: SQL text, or a boolean Column. A record meets the rule only if it is true; null counts as failed.
        name: Name of the rule.
        action: See ``Rule``.

    Returns:
        The records that meet the rule, with the same columns. With ``warn``, all records.

    Raises:
        ConfigError: See ``expect_all``.
    """
    return expect_all(df, [Rule(name, condition, action)])


def expect_all(df: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Keep the records that meet all rules whose action is not ``warn``. Every rule is checked for every record.

    A record that fails several rules is set aside once, with the names of all of them. The most severe of their actions
    applies, in the order stop, the asset's own action, dead_letter, skip. Outside an asset, for example in a unit test,
    failed records are only filtered out.

    Args:
        df: Records, with ``_kafka`` unless all rules have the action ``warn``.
        rules: The rules. Their names must be unique within the stage.

    Returns:
        The records that are kept, with the same columns.

    Raises:
        ConfigError: There are no rules, a name is empty or not unique, a condition is invalid or not boolean, an action
            is unknown, or ``_kafka`` is missing.
    """
    _check(df, rules)
    failing = {rule.name: ~F.coalesce(_column(df, rule), F.lit(False)) for rule in rules}
    grave = [rule for rule in rules if rule.action != "warn"]
    names = F.array_compact(F.array(*[F.when(failing[r.name], F.lit(r.name)) for r in rules]))
    # Persisted, because it is read twice below and a condition may be nondeterministic.
    checked = df.withColumn(_FAILED, names).persist()
    set_aside = reduce(Column.__or__, [F.array_contains(_FAILED, r.name) for r in grave], F.lit(False))
    notes = current_notes()
    if notes is not None:
        notes.rules.update(rule.name for rule in rules)
        notes.cached.append(checked)
        notes.counts.append(_counts(checked, rules))
        if grave:
            coordinates = [F.col(f"_kafka.{name}").alias(name) for name in ("topic", "partition", "offset")]
            notes.faults.append(checked.where(set_aside).select(*coordinates, _note(rules).alias("note")))
    return checked.where(~set_aside).drop(_FAILED)


def _check(df: DataFrame, rules: Sequence[Rule]) -> None:
    names = [rule.name for rule in rules]
    if not rules:
        msg = "expect_all has no rules"
        raise ConfigError(msg, fix='expect_all(df, [Rule("name", "condition")])')
    for name in names:
        if not isinstance(name, str) or not name.strip() or names.count(name) > 1:
            msg = f"rule names must be unique and not empty: {', '.join(map(repr, names))}"
            raise ConfigError(msg, fix="give each rule a unique name")
    notes = current_notes()
    known = sorted(notes.rules.intersection(names)) if notes is not None else []
    if known:
        msg = f"the stage has two rules named {known[0]!r}, which would be counted as one"
        raise ConfigError(msg, fix="give each rule of a stage a unique name")
    for rule in rules:
        if rule.action is not None and rule.action not in _ACTIONS:
            msg = f"rule {rule.name!r} has the unknown action {rule.action!r}"
            raise ConfigError(msg, fix=f"use one of {', '.join(_ACTIONS)}; or None for the asset's action")
        if rule.action != "warn" and "_kafka" not in df.columns:
            msg = f"rule {rule.name!r} removes failing records, but the DataFrame has no _kafka to identify them"
            raise ConfigError(msg, fix='apply the rule before _kafka is dropped, or use action="warn"')


def _column(df: DataFrame, rule: Rule) -> Column:
    """The condition as a column, parsed and type-checked now rather than during the run."""
    try:
        column = F.expr(rule.condition) if isinstance(rule.condition, str) else rule.condition
        kind = df.select(column.alias("c")).schema["c"].dataType
        if isinstance(kind, BooleanType):
            # An aggregate or a generator can be selected alone, but is not a condition on each record.
            df.select("*", F.coalesce(column, F.lit(False)).alias(_FAILED)).schema  # noqa: B018  # Spark analyzes it here
    except Exception as error:
        msg = f"rule {rule.name!r}: the condition {rule.condition!s} cannot be parsed: {root_cause(error)}"
        raise ConfigError(msg, fix="write a Spark SQL condition on the DataFrame's columns") from error
    if not isinstance(kind, BooleanType):
        msg = f"rule {rule.name!r}: the condition {rule.condition!s} is {kind.simpleString()}, not boolean"
        raise ConfigError(msg, fix="write a boolean condition, for example a comparison")
    return column


def _note(rules: Sequence[Rule]) -> Column:
    """The ``RowFault`` of a row as JSON, with the rules that the row fails."""

    def failed(rule: Rule) -> Column:
        return F.array_contains(_FAILED, rule.name)

    texts = [F.when(failed(r), F.lit(_shown(r))) for r in rules]
    action = F.lit(None).cast("string")
    for gravity in reversed(_GRAVEST):
        having = [failed(r) for r in rules if (r.action or "") == gravity]
        if having:
            chosen = F.lit(gravity or None).cast("string")
            action = F.when(reduce(Column.__or__, having), chosen).otherwise(action)
    fault = F.struct(
        F.lit(Component.STAGE.value).alias("component"),
        F.lit("rule").alias("kind"),
        F.lit("RuleFailed").alias("exception_type"),
        F.concat(F.lit("failed: "), F.concat_ws(", ", *texts)).alias("message"),
        F.unix_millis(F.current_timestamp()).alias("at_ms"),
    )
    return F.to_json(F.struct(fault.alias("fault"), action.alias("action"), F.col(_FAILED).alias("rules")))


def _shown(rule: Rule) -> str:
    text = rule.condition if isinstance(rule.condition, str) else str(rule.condition).removeprefix("Column<")[1:-2]
    # The text of a Python UDF contains Spark objects and their addresses, so only the name is shown.
    return rule.name if "Origin(" in text else f"{rule.name} ({text})"


def _counts(checked: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """One row per rule with the JSON of its ``RuleCount``, from a single aggregation."""
    aggregated = checked.agg(
        F.count(F.lit(1)).alias("checked"),
        *[F.count(F.when(F.array_contains(_FAILED, r.name), 1)).alias(f"failed_{i}") for i, r in enumerate(rules)],
    )
    each = [
        F.to_json(
            F.struct(
                F.lit(rule.name).alias("rule"),
                F.lit(rule.action or "asset").alias("action"),
                F.col("checked"),
                F.col(f"failed_{i}").alias("failed"),
            )
        )
        for i, rule in enumerate(rules)
    ]
    return aggregated.select(F.explode(F.array(*each)).alias("note"))
