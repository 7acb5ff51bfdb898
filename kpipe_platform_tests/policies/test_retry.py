"""When something is tried again, and how long is waited, by injected clocks and chances."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform.errors import ConfigError, StageFailedError
from kpipe_platform.policies.retry import RecordRetryPolicy, try_again


class CustomError(ValueError):
    pass


def delays(policy: RecordRetryPolicy, count: int = 5, chance: float = 0.5) -> list[float | None]:
    return [policy.next_delay_s(n, 0.0, ValueError("x"), lambda: chance) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RecordRetryPolicy(max_attempts=3, delay_s=1, backoff="fixed", jitter="none"), [1, 1, None, None, None]),
        (RecordRetryPolicy(max_attempts=5, delay_s=1, jitter="none"), [1, 2, 4, 8, None]),
        (RecordRetryPolicy(max_attempts=5, delay_s=1, multiplier=3, max_delay_s=5, jitter="none"), [1, 3, 5, 5, None]),
        (RecordRetryPolicy(max_attempts=3, delay_s=1, jitter="full"), [0.5, 1.0, None, None, None]),
        (RecordRetryPolicy(max_attempts=3, delay_s=1, jitter="proportional"), [1.0, 2.0, None, None, None]),
        (RecordRetryPolicy(max_attempts=1), [None] * 5),
    ],
)
def test_delays(policy: RecordRetryPolicy, expected: list[float | None]) -> None:
    assert delays(policy) == expected


def test_thousands_of_attempts_do_not_overflow() -> None:
    policy = RecordRetryPolicy(max_attempts=100_000, delay_s=1, jitter="none")
    assert policy.next_delay_s(99_999, 0, ValueError()) == 30.0


def test_no_attempt_begins_past_the_longest_duration() -> None:
    policy = RecordRetryPolicy(max_attempts=9, delay_s=1, backoff="fixed", jitter="none", max_duration_s=3)
    assert policy.next_delay_s(1, 1.5, ValueError()) == 1
    assert policy.next_delay_s(2, 2.5, ValueError()) is None


@pytest.mark.parametrize(
    ("filters", "concerned"),
    [
        ({}, True),
        ({"retry_on": (ValueError,)}, True),
        ({"retry_on": ("ValueError",)}, True),
        ({"retry_on": ("builtins.ValueError",)}, True),
        ({"retry_on": (KeyError,)}, False),
        ({"give_up_on": (ValueError,)}, False),
        ({"retry_on": (Exception,), "give_up_on": (CustomError,)}, False),
        ({"retry_on": f"{__name__}.CustomError"}, True),
    ],
)
def test_filters(filters: dict[str, Any], concerned: bool) -> None:
    assert RecordRetryPolicy(**filters).concerns(CustomError("x")) is concerned


def test_an_error_that_names_what_a_task_raised() -> None:
    error = StageFailedError("failed", exception_type="shop.errors.Busy", cause="shop.errors.Busy: later")
    assert RecordRetryPolicy(retry_on=("shop.errors.Busy",)).concerns(error)
    assert not RecordRetryPolicy(retry_on=("shop.errors.Gone",)).concerns(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"delay_s": -1},
        {"backoff": "linear"},
        {"multiplier": 0.5},
        {"max_delay_s": -1},
        {"jitter": "some"},
        {"max_duration_s": 0},
        {"retry_on": (3,)},
        {"retry_on": None},
        {"max_attempts": "3"},
        {"max_attempts": 2.5},
        {"delay_s": float("inf")},
        {"multiplier": None},
    ],
)
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        RecordRetryPolicy(**wrong)
    assert next(iter(wrong)) in str(caught.value)
    assert caught.value.fix


def test_to_configuration_and_back() -> None:
    policy = RecordRetryPolicy(max_attempts=7, retry_on=(TimeoutError, "a.B"), give_up_on=(CustomError,))
    config = policy.to_config()
    assert config["retry_on"] == ["TimeoutError", "a.B"]
    assert RecordRetryPolicy.from_config(config).to_config() == config
    with pytest.raises(ConfigError, match="attempts"):
        RecordRetryPolicy.from_config({"attempts": 3})


def test_attempts_are_kept_with_their_times_and_delays() -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    results = iter([ValueError("one"), CustomError("two"), "done"])

    def call() -> Any:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    policy = RecordRetryPolicy(max_attempts=3, delay_s=1, jitter="none")
    tried = try_again(policy, call, clock=lambda: now[0], wall=lambda: now[0], sleep=sleep)
    assert (tried.result, tried.error) == ("done", None)
    assert slept == [1, 2]
    assert [(a.number, a.at_ms, a.delay_s, a.message) for a in tried.failed] == [
        (1, 100_000, 1, "one"),
        (2, 101_000, 2, "two"),
    ]
    assert tried.failed[1].exception_type == f"{__name__}.CustomError"


def test_the_last_attempt_is_in_the_history_and_a_single_one_is_not() -> None:
    def call() -> None:
        raise ValueError("x" * 1000)

    tried = try_again(RecordRetryPolicy(max_attempts=2, delay_s=0), call, sleep=lambda _: None)
    assert [a.delay_s for a in tried.failed] == [0, None]
    assert len(tried.failed[0].message) == 300
    assert try_again(None, call).failed == ()
    assert isinstance(try_again(None, call).error, ValueError)


def test_what_is_no_exception_of_a_record_is_not_caught() -> None:
    def call() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        try_again(RecordRetryPolicy(), call)


def test_an_attempt_that_failed_already_is_the_first() -> None:
    policy = RecordRetryPolicy(max_attempts=2, delay_s=0, jitter="none")
    tried = try_again(policy, lambda: "done", first=ValueError("before"), sleep=lambda _: None)
    assert (tried.result, [a.message for a in tried.failed]) == ("done", ["before"])
    first = ValueError("before")
    assert try_again(None, lambda: "never called", first=first).error is first


def test_only_what_is_to_be_caught_is_an_attempt() -> None:
    def call() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        try_again(RecordRetryPolicy(delay_s=0), call, catch=ValueError)
