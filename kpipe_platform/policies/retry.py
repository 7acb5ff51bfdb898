"""How often, how long and after which exceptions something is tried again. Pure: clock, sleep and chance are given."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.bounds import is_count, is_positive
from kpipe_platform.policies.faults import bounded, qualified_name

T = TypeVar("T")

ExceptionFilter = tuple[type[BaseException] | str, ...]
"""Exception classes, or their qualified names such as ``requests.exceptions.Timeout``."""

MAX_ATTEMPT_MESSAGE_CHARS = 300
"""Longest message that an attempt keeps: its history travels in the dead letter."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that failed.

    Args:
        number: From 1.
        at_ms: When it failed, milliseconds since the epoch.
        delay_s: Seconds until the next attempt; None after the last one.
        exception_type: What it failed with.
        message: What the exception said, cut to `MAX_ATTEMPT_MESSAGE_CHARS`.
    """

    number: int
    at_ms: int
    delay_s: float | None
    exception_type: str
    message: str

    @classmethod
    def of(cls, number: int, error: BaseException, delay_s: float | None, at_ms: int) -> Attempt:
        """The attempt that ended with this exception."""
        message = getattr(error, "cause", None) or getattr(error, "message", None)
        text = message if isinstance(message, str) else str(error)
        name = getattr(error, "exception_type", None) or qualified_name(type(error))
        return cls(number, at_ms, delay_s, name, bounded(text, MAX_ATTEMPT_MESSAGE_CHARS))


@dataclass(frozen=True, slots=True)
class RecordRetryPolicy:
    """Attempts at one record, or at one slice.

    Args:
        max_attempts: Attempts at most, with the first one.
        delay_s: Seconds before the second attempt.
        backoff: ``fixed``: the same delay each time; ``exponential``: ``multiplier`` times as long each time.
        multiplier: For ``exponential``, 1 or more.
        max_delay_s: The longest delay, before jitter.
        jitter: ``none``; ``full``: a random part of the delay; ``proportional``: up to a quarter more or less.
        max_duration_s: No further attempt begins when it would begin later than this many seconds after the first;
            None: no such limit.
        retry_on: Only after these exceptions (and their subclasses).
        give_up_on: Never after these, whatever ``retry_on`` says.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    max_attempts: int = 3
    delay_s: float = 0.1
    backoff: Literal["fixed", "exponential"] = "exponential"
    multiplier: float = 2.0
    max_delay_s: float = 30.0
    jitter: Literal["none", "full", "proportional"] = "proportional"
    max_duration_s: float | None = None
    retry_on: ExceptionFilter = (Exception,)
    give_up_on: ExceptionFilter = ()

    def __post_init__(self) -> None:
        for name, (is_valid, fix) in _BOUNDS.items():
            if not is_valid(getattr(self, name)):
                msg = f"RecordRetryPolicy({name}={getattr(self, name)!r})"
                raise ConfigError(msg, fix=fix)
        for name in _FILTERS:
            given = getattr(self, name)
            listed = tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)
            for item in listed:
                if not isinstance(item, str) and not (isinstance(item, type) and issubclass(item, BaseException)):
                    msg = f"RecordRetryPolicy({name}=...) holds {item!r}, which is not an exception"
                    raise ConfigError(msg, fix="give exception classes, or their qualified names")
            object.__setattr__(self, name, listed)

    def next_delay_s(
        self, failures: int, elapsed_s: float, error: BaseException, chance: Callable[[], float] = random.random
    ) -> float | None:
        """Seconds to wait before the next attempt; None to give up.

        Args:
            failures: Attempts that failed, the last one with them.
            elapsed_s: Seconds since the first attempt began.
            error: What the last one failed with.
            chance: A number from 0 up to 1; injected for tests.
        """
        if failures >= self.max_attempts or not self.concerns(error):
            return None
        factor = 1.0
        if self.backoff == "exponential":
            # Bounded, so that a policy of thousands of attempts cannot overflow.
            factor = self.multiplier ** min(failures - 1, 64)
        delay = min(self.delay_s * factor, self.max_delay_s)
        if self.jitter == "full":
            delay *= chance()
        elif self.jitter == "proportional":
            delay *= 0.75 + chance() / 2
        if self.max_duration_s is not None and elapsed_s + delay > self.max_duration_s:
            return None
        return delay

    def concerns(self, error: BaseException) -> bool:
        """Whether the exception is one to try again after."""
        return _matches(error, self.retry_on) and not _matches(error, self.give_up_on)

    def to_config(self) -> dict[str, Any]:
        """Plain JSON: what asset metadata and configuration hold."""
        names = {
            name: [x if isinstance(x, str) else qualified_name(x) for x in getattr(self, name)] for name in _FILTERS
        }
        return {name: getattr(self, name) for name in _BOUNDS} | names

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RecordRetryPolicy:
        """Read what ``to_config`` wrote, or a part of it.

        Raises:
            ConfigError: A name is not known, or a value is out of its bounds.
        """
        known = {*_BOUNDS, *_FILTERS}
        if not isinstance(config, Mapping) or set(config) - known:
            msg = f"{config!r} is not a retry policy"
            raise ConfigError(msg, fix=f"use {', '.join(sorted(known))}")
        return cls(**config)


def _is_number(value: Any, least: float = 0.0) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= least


# Each setting that is not a filter: what it may be, and how to fix it.
_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_attempts": (lambda value: is_count(value, 1), "set it to 1 or more"),
    "delay_s": (_is_number, "set it to 0 seconds or more"),
    "backoff": (lambda value: value in ("fixed", "exponential"), 'use "fixed" or "exponential"'),
    "multiplier": (lambda value: _is_number(value, 1), "set it to 1 or more"),
    "max_delay_s": (_is_number, "set it to 0 seconds or more"),
    "jitter": (lambda value: value in ("none", "full", "proportional"), 'use "none", "full" or "proportional"'),
    "max_duration_s": (
        lambda value: value is None or is_positive(value),
        "set it to more than 0 seconds, or leave it out",
    ),
}
_FILTERS = ("retry_on", "give_up_on")


def _matches(error: BaseException, wanted: ExceptionFilter) -> bool:
    # Of what a Spark task raised there is only the name of the exception's class, on an error of ours.
    raised = getattr(error, "exception_type", None)
    for item in wanted:
        if raised is not None and raised == (item if isinstance(item, str) else qualified_name(item)):
            return True
        if isinstance(item, str):
            if any(item in (qualified_name(cls), f"builtins.{cls.__name__}") for cls in type(error).__mro__):
                return True
        elif isinstance(error, item):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of the attempts: a result, or the last exception; with those that failed."""

    result: Any = None
    error: Exception | None = None
    failed: tuple[Attempt, ...] = ()


def try_again(
    policy: RecordRetryPolicy | None,
    call: Callable[[], T],
    *,
    first: Exception | None = None,
    catch: type[Exception] = Exception,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> Tried:
    """Call until it succeeds or the policy gives up.

    Args:
        policy: None: one attempt.
        call: What to try.
        first: What a first attempt failed with already; None: there was none.
        catch: Exceptions that are a failed attempt; any other is raised.
        clock: Monotonic seconds.
        wall: Seconds since the epoch.
        sleep: Waits for seconds.
        chance: A number from 0 up to 1.

    Returns:
        The result, or the exception of the last attempt, with every attempt that failed. The history of a call that
        failed once and was not to be tried again is empty: the exception itself says it all.
    """
    began = clock()
    failed: list[Attempt] = []
    error = first
    while True:
        if error is None:
            try:
                return Tried(call(), None, tuple(failed))
            except catch as raised:
                error = raised
        number = len(failed) + 1
        delay = None
        if policy is not None:
            delay = policy.next_delay_s(number, clock() - began, error, chance)
        failed.append(Attempt.of(number, error, delay, int(wall() * 1000)))
        if delay is None:
            return Tried(None, error, tuple(failed) if number > 1 else ())
        sleep(delay)
        error = None
