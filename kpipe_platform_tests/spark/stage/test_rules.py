"""Rules: which rows pass, what is noted of the others, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.faults import Component, FaultAction
from kpipe_platform.spark.stage.notes import RowFault, RuleCount, StageNotes, noting
from kpipe_platform.spark.stage.rules import Rule, expect, expect_all
from kpipe_platform_tests.spark.conftest import Records

pytestmark = pytest.mark.spark


def faults(notes: StageNotes) -> dict[int, RowFault]:
    return {r["offset"]: RowFault.from_json(r["note"]) for f in notes.faults for r in f.collect()}


def counts(notes: StageNotes) -> dict[str, RuleCount]:
    found = [RuleCount.from_json(r["note"]) for f in notes.counts for r in f.collect()]
    return {count.rule: count for count in found}


ROWS = [{"id": 1, "note": "a"}, {"id": -1, "note": None}, {"id": 3, "note": "bad"}, {"id": -4, "note": "bad"}]


@pytest.mark.parametrize(
    ("condition", "passes"),
    [
        ("id > 0", [1, 3]),
        ("note != 'bad'", [1]),
        ("note is null or note != 'bad'", [1, -1]),
        ("cast(null as boolean)", []),
        ("true", [1, -1, 3, -4]),
    ],
)
def test_a_rule_holds_only_where_it_is_true(records: Records, condition: str, passes: list[int]) -> None:
    with noting() as notes:
        good = expect(records(ROWS), condition, name="r", action="dead_letter")
    assert [row["id"] for row in good.collect()] == passes
    assert good.columns == ["id", "note", "_kafka"]
    assert [ROWS[o]["id"] for o in sorted(faults(notes))] == [r["id"] for r in ROWS if r["id"] not in passes]
    assert counts(notes)["r"] == RuleCount("r", "dead_letter", 4, 4 - len(passes))
    notes.release()


def test_several_rules_in_one_pass(records: Records) -> None:
    with noting() as notes:
        good = expect_all(
            records(ROWS),
            [
                Rule("positive", "id > 0", "skip"),
                Rule("named", F.col("note").isNotNull(), "warn"),
                Rule("fine", "note is null or note != 'bad'", "dead_letter"),
            ],
        )
    assert [row["id"] for row in good.collect()] == [1]
    found = faults(notes)
    assert {o: (f.action, f.rules) for o, f in found.items()} == {
        1: (FaultAction.SKIP, ("positive", "named")),
        2: (FaultAction.DEAD_LETTER, ("fine",)),
        3: (FaultAction.DEAD_LETTER, ("positive", "fine")),
    }
    fault = found[3].fault
    assert (fault.component, fault.kind, fault.exception_type) == (Component.STAGE, "rule", "RuleFailed")
    assert fault.message == "failed: positive (id > 0), fine (note is null or note != 'bad')"
    assert {n: (c.checked, c.failed) for n, c in counts(notes).items()} == {
        "positive": (4, 2),
        "named": (4, 1),
        "fine": (4, 2),
    }
    notes.release()


@pytest.mark.parametrize(
    ("actions", "chosen"),
    [
        (("skip", "stop"), FaultAction.STOP),
        (("stop", None), FaultAction.STOP),
        ((None, "dead_letter"), None),
        (("dead_letter", "skip"), FaultAction.DEAD_LETTER),
        (("skip", "warn"), FaultAction.SKIP),
    ],
)
def test_the_gravest_action_counts(records: Records, actions: tuple[Any, Any], chosen: FaultAction | None) -> None:
    with noting() as notes:
        expect_all(records(ROWS[:1]), [Rule(f"r{i}", "false", action) for i, action in enumerate(actions)])
    assert faults(notes)[0].action is chosen
    notes.release()


def test_warn_lets_every_record_on_and_needs_no_coordinates(records: Records) -> None:
    with noting() as notes:
        good = expect(records(ROWS).drop("_kafka"), "id > 0", name="positive", action="warn")
    assert good.count() == 4
    assert notes.faults == []
    assert counts(notes)["positive"] == RuleCount("positive", "warn", 4, 2)
    notes.release()


def test_a_random_condition_is_looked_at_once(records: Records) -> None:
    rows = [{"id": n, "note": "x"} for n in range(500)]
    with noting() as notes:
        good = expect(records(rows), F.rand() < 0.5, name="coin", action="dead_letter")
    passed = {row["id"] for row in good.collect()}
    assert passed.isdisjoint(faults(notes))
    assert passed | set(faults(notes)) == set(range(500))
    assert counts(notes)["coin"].failed == 500 - len(passed)
    notes.release()


def test_by_hand_the_records_are_filtered(records: Records) -> None:
    assert expect(records(ROWS), "id > 0", name="r").count() == 2


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], "no rules"),
        ([Rule("", "true")], "not empty: ''"),
        ([Rule("a", "true"), Rule("a", "false")], "'a', 'a'"),
        ([Rule("typo", "idd > 0")], "rule 'typo'.*idd"),
        ([Rule("broken", "id >")], "rule 'broken'"),
        ([Rule("number", "id + 1")], "bigint, not boolean"),
        ([Rule(" ", "true")], "not empty: ' '"),
        ([Rule("total", "count(1) > 0")], "rule 'total'"),
        ([Rule("rows", "explode(array(true))")], "rule 'rows'"),
        ([Rule("r", "true", "drop")], "'drop'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_refused_at_definition(records: Records, rules: list[Rule], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        expect_all(records(ROWS), rules)
    assert caught.value.fix


def test_without_coordinates_nothing_can_be_set_aside(records: Records) -> None:
    with pytest.raises(ConfigError, match="no _kafka"):
        expect(records(ROWS).drop("_kafka"), "true", name="r")


def test_a_condition_of_a_python_function_is_named_without_sparks_objects(records: Records) -> None:
    positive = F.udf(lambda number: number > 0, "boolean")(F.col("id"))
    with noting() as notes:
        assert expect(records(ROWS), positive, name="positive", action="skip").count() == 2
    assert {found.fault.message for found in faults(notes).values()} == {"failed: positive"}
    notes.release()


def test_two_rules_of_one_name_in_a_stage_are_refused(records: Records) -> None:
    with noting() as notes:
        good = expect(records(ROWS), "id > 0", name="r")
        with pytest.raises(ConfigError, match="two rules named 'r'"):
            expect(good, "id < 9", name="r")
    notes.release()
