from __future__ import annotations

import pickle

import pytest

from kpipe_platform.codecs import JsonCodec
from kpipe_platform.errors import DestinationRejectedError
from kpipe_platform.policies.faults import Component, Fault, FaultAction


def at_noon() -> float:
    return 1_357_041_600.25


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - the traceback is wanted
        return caught


@pytest.mark.parametrize(
    ("member", "text"),
    [
        (FaultAction.STOP, "stop"),
        (FaultAction.DEAD_LETTER, "dead_letter"),
        (FaultAction.SKIP, "skip"),
        (FaultAction.RETHROW, "rethrow"),
        (Component.SOURCE, "source"),
        (Component.DECODE_KEY, "decode_key"),
        (Component.DECODE_VALUE, "decode_value"),
        (Component.STAGE, "stage"),
        (Component.DESTINATION, "destination"),
        (Component.DEAD_LETTER, "dead_letter"),
    ],
)
def test_members_read_as_their_values(member: FaultAction | Component, text: str) -> None:
    assert (f"{member}", str(member), member.value, member == text) == (text, text, text, True)
    assert type(member)(text) is member


def test_of_an_exception_of_the_stage() -> None:
    fault = Fault.from_exception(Component.STAGE, raised(ZeroDivisionError("division by zero")), clock=at_noon)
    assert (fault.component, fault.kind, fault.exception_type, fault.message, fault.at_ms, fault.field) == (
        Component.STAGE,
        "ZeroDivisionError",
        "ZeroDivisionError",
        "division by zero",
        1_357_041_600_250,
        None,
    )
    assert fault.stacktrace is not None
    assert fault.stacktrace.startswith("Traceback (most recent call last):")
    assert fault.stacktrace.endswith("ZeroDivisionError: division by zero\n")


def test_of_a_codec_keeps_its_kind_and_field() -> None:
    found = JsonCodec("dep_time INT NOT NULL").explain(b"{}")
    fault = Fault.from_exception(Component.DECODE_VALUE, found, clock=at_noon)
    assert fault == Fault(
        Component.DECODE_VALUE,
        "missing_field",
        "kpipe_platform.errors.DecodeFault",
        'field "dep_time" is required but missing',
        1_357_041_600_250,
        stacktrace=None,
        field="dep_time",
    )


def test_of_our_own_errors_has_the_message_without_the_fix() -> None:
    error = DestinationRejectedError("topic t refuses it", fix="raise max.message.bytes")
    fault = Fault.from_exception(Component.DESTINATION, error, kind="too_large", clock=at_noon)
    assert (fault.kind, fault.message) == ("too_large", "topic t refuses it")


def test_of_an_exception_without_a_message_has_its_name() -> None:
    assert Fault.from_exception(Component.STAGE, KeyError(), clock=at_noon).message == "KeyError"


def test_the_stack_trace_can_be_left_out() -> None:
    error = raised(ValueError("x"))
    assert Fault.from_exception(Component.STAGE, error, with_stacktrace=False, clock=at_noon).stacktrace is None


def test_texts_are_bounded() -> None:
    fault = Fault(Component.STAGE, "k", "E", "m" * 2_001, 0, stacktrace="head" + "s" * 4_000 + "tail")
    assert fault.message == "m" * 1_997 + "..."
    assert fault.stacktrace is not None
    assert len(fault.stacktrace) == 4_000
    assert fault.stacktrace.startswith("... sss")
    assert fault.stacktrace.endswith("tail")


def test_texts_of_the_longest_length_are_whole() -> None:
    fault = Fault(Component.STAGE, "k", "E", "m" * 2_000, 0, stacktrace="s" * 4_000)
    assert (fault.message, fault.stacktrace) == ("m" * 2_000, "s" * 4_000)


def test_faults_pickle() -> None:
    fault = Fault(Component.STAGE, "k", "E", "m", 5, stacktrace="s", field="a.b")
    assert pickle.loads(pickle.dumps(fault)) == fault
