"""Retry policies: attempts, delays, and the exceptions to retry. Pure: clock, sleep and randomness are injected."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.bounds import is_count, is_positive
from kpipe_platform.policies.faults import qualified_name, truncate

T = TypeVar("T")

ExceptionFilter = tuple[type[BaseException] | str, ...]
"""Exception classes or their qualified names, such as ``requests.exceptions.Timeout``."""

MAX_ATTEMPT_MESSAGE_CHARS = 300
"""Maximum length of an attempt's message, because the dead letter contains all attempts."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt.

    Args:
        number: Number of the attempt, from 1.
        at_ms: Time of the failure, milliseconds since the epoch.
        delay_s: Seconds until the next attempt; None after the last one.
        exception_type: Qualified class name of the exception.
        message: Message of the exception, truncated to `MAX_ATTEMPT_MESSAGE_CHARS`.
    """

    number: int
    at_ms: int
    delay_s: float | None
    exception_type: str
    message: str

    @classmethod
    def of(cls, number: int, error: BaseException, delay_s: float | None, at_ms: int) -> Attempt:
        """Create the attempt that failed with this exception."""
        message = getattr(error, "cause", None) or getattr(error, "message", None)
        text = message if isinstance(message, str) else str(error)
        name = getattr(error, "exception_type", None) or qualified_name(type(error))
        return cls(number, at_ms, delay_s, name, truncate(text, MAX_ATTEMPT_MESSAGE_CHARS))


@dataclass(frozen=True, slots=True)
class RecordRetryPolicy:
    """Retries of one record or one slice.

    Args:
        max_attempts: Maximum number of attempts, including the first, 3 by default.
        delay_s: Delay before the second attempt, seconds, 0.1 by default.
        backoff: ``fixed``: the same delay each time; ``exponential`` (the default): each delay is ``multiplier`` times
            the previous one.
        multiplier: Factor for ``exponential``, 1 or more, 2 by default.
        max_delay_s: Maximum delay before jitter, seconds, 30 by default.
        jitter: ``none``; ``full``: a random part of the delay; ``proportional`` (the default): up to a quarter more or
            less.
        max_duration_s: No attempt starts later than this after the first one started, seconds; None (the default) for
            no limit.
        retry_on: Exceptions to retry, with their subclasses; every ``Exception`` by default.
        give_up_on: Exceptions never to retry; takes precedence over ``retry_on``.

    Raises:
        ConfigError: A value is out of bounds.
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
                    msg = f"RecordRetryPolicy({name}=...) contains {item!r}, which is not an exception"
                    raise ConfigError(msg, fix="use exception classes, or their qualified names")
            object.__setattr__(self, name, listed)

    def next_delay_s(
        self, failures: int, elapsed_s: float, error: BaseException, chance: Callable[[], float] = random.random
    ) -> float | None:
        """Return the seconds to wait before the next attempt; None to give up.

        Args:
            failures: Number of failed attempts, including the last one.
            elapsed_s: Seconds since the first attempt started.
            error: Exception of the last attempt.
            chance: Returns a random number from 0 up to 1; injected for tests.
        """
        if failures >= self.max_attempts or not self.concerns(error):
            return None
        factor = 1.0
        if self.backoff == "exponential":
            # Limit the exponent, so that a policy with thousands of attempts cannot overflow.
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
        """Return whether the policy retries this exception."""
        return _matches(error, self.retry_on) and not _matches(error, self.give_up_on)

    def to_config(self) -> dict[str, Any]:
        """Return plain JSON for asset metadata and configuration."""
        names = {
            name: [x if isinstance(x, str) else qualified_name(x) for x in getattr(self, name)] for name in _FILTERS
        }
        return {name: getattr(self, name) for name in _BOUNDS} | names

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RecordRetryPolicy:
        """Parse the output of ``to_config``, or a part of it.

        Raises:
            ConfigError: A name is unknown, or a value is out of bounds.
        """
        known = {*_BOUNDS, *_FILTERS}
        if not isinstance(config, Mapping) or set(config) - known:
            msg = f"{config!r} is not a retry policy"
            raise ConfigError(msg, fix=f"use a mapping with some of: {', '.join(sorted(known))}")
        return cls(**config)


def _is_number(value: Any, least: float = 0.0) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= least


# For each setting that is not a filter: the check of its value, and the fix for the error.
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
    # For an exception raised in a Spark task, the kpipe error only has the exception's class name.
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
    """Outcome of the attempts: a result or the last exception, with the failed attempts."""

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
    """Call until the call succeeds or the policy gives up.

    Args:
        policy: The retry policy; None for a single attempt.
        call: The function to call.
        first: Exception of a first attempt that has already failed; None if there was none.
        catch: Exceptions that count as a failed attempt; others are raised.
        clock: Monotonic clock in seconds.
        wall: Returns seconds since the epoch.
        sleep: Sleep function, in seconds.
        chance: Returns a random number from 0 up to 1.

    Returns:
        The result, or the exception of the last attempt, with all failed attempts. If the only attempt failed, the
        list of failed attempts is empty, because the exception contains everything.
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
