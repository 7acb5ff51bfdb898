from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe_platform import errors
from kpipe_platform.errors import KpipeError, Part
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.spark.sink.outcome_json import outcome_of_json, outcome_to_json
from kpipe_platform.spark.sink.spec import FaultSample, Outcome, PreviewRow
from kpipe_platform.spark.stage.notes import RuleCount

FAULTS = [errors.DecodeFault, errors.EncodeFault]
ERRORS = [
    kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, KpipeError) and kind not in FAULTS and not name.startswith("_")
]

# Any text that Python has, lone surrogates too.
TEXT = st.text(st.characters(), max_size=20)
NUMBER = st.integers(0, 2**63)
OPTIONAL = st.none() | TEXT
FAULT = st.builds(Fault, st.sampled_from(Component), TEXT, TEXT, TEXT, NUMBER, OPTIONAL, OPTIONAL)
COUNTS = st.builds(SliceCounts, NUMBER, NUMBER, NUMBER, NUMBER)
RULE = st.builds(RuleCount, TEXT, TEXT, NUMBER, NUMBER)
SAMPLE = st.builds(FaultSample, TEXT, NUMBER, st.none() | NUMBER, FAULT, st.sampled_from(FaultAction))
OUTCOME = st.builds(
    Outcome,
    TEXT,
    st.dictionaries(NUMBER, COUNTS, max_size=3),
    NUMBER,
    st.lists(SAMPLE, max_size=2),
    st.dictionaries(TEXT, NUMBER, max_size=3),
    st.lists(RULE, max_size=2).map(lambda rules: {rule.rule: rule for rule in rules}),
    st.dictionaries(TEXT | st.tuples(NUMBER, NUMBER), FAULT, max_size=3),
    st.lists(st.builds(PreviewRow, OPTIONAL, OPTIONAL, OPTIONAL), max_size=2),
    st.none() | st.dictionaries(TEXT, NUMBER, max_size=3),
    st.none(),
    st.dictionaries(TEXT, st.floats(0, 1e9), max_size=3),
)


@given(OUTCOME)
def test_an_outcome_comes_back_as_it_was(outcome: Outcome) -> None:
    assert outcome_of_json(outcome_to_json(outcome)) == outcome


@pytest.mark.parametrize("kind", ERRORS)
@given(message=TEXT, fix=OPTIONAL, part=st.none() | st.sampled_from(get_args(Part)), topic=TEXT, partition=NUMBER)
def test_an_error_comes_back_with_its_type(
    kind: type[KpipeError], message: str, fix: str | None, part: Part | None, topic: str, partition: int
) -> None:
    error = kind(message, fix=fix, topic=topic, partition=partition)
    error.part = part
    found = outcome_of_json(outcome_to_json(Outcome("error", error=error))).error
    assert found is not None
    assert (type(found), found.message, found.fix, found.part) == (kind, message, fix, part)
    assert found.attributes == error.attributes


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_a_codec_comes_back_with_its_kind(kind: type[errors.DecodeFault | errors.EncodeFault]) -> None:
    error = kind("no bytes", kind="wrong_type", field="at")
    found = outcome_of_json(outcome_to_json(Outcome("error", error=error))).error
    assert type(found) is kind
    assert (found.message, found.kind, found.field) == ("no bytes", "wrong_type", "at")
    assert found.attributes == error.attributes


@pytest.mark.parametrize("kind", ["system", "Any", "annotations", "KeyError", "__builtins__"])
def test_an_answer_names_nothing_but_errors_of_kpipe(kind: str) -> None:
    document = json.loads(outcome_to_json(replace(Outcome("error"), error=KpipeError("x"))))
    document["error"]["kind"] = kind
    with pytest.raises((TypeError, AttributeError)):
        outcome_of_json(json.dumps(document))
