"""Fault actions and retries for each part of the pipeline.

The most specific declaration applies. For a record that failed in one part, the order is:

1. the action of the rule or row function that rejected it,
2. the asset's policy for that part,
3. the asset's action for all parts,
4. the IO manager's policy for that part,
5. the IO manager's action for all parts,
6. ``FaultAction.STOP``.

The actions for all parts do not apply to the part ``dead_letter``: a dead letter that cannot be created stops the run,
unless the part's own policy is ``SKIP``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kpipe_platform.errors import ConfigError, Part
from kpipe_platform.policies.faults import Component, FaultAction
from kpipe_platform.policies.retry import RecordRetryPolicy

PARTS = ("source", "stage", "destination", "dead_letter")
"""Parts of the pipeline that have their own policy. ``source`` is reading and decoding."""

_PART_OF = {
    Component.SOURCE: "source",
    Component.DECODE_KEY: "source",
    Component.DECODE_VALUE: "source",
    Component.STAGE: "stage",
    Component.DESTINATION: "destination",
    Component.DEAD_LETTER: "dead_letter",
}
_STOPS = (FaultAction.STOP, FaultAction.RETHROW)


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """The policy of one part.

    Args:
        action: Action for a record that fails in this part, or its name (``"skip"``); None for the action for all
            parts.
        retry: Retries before the action applies. ``source``: retry reading if the brokers do not answer. ``stage``:
            retry the stage on a single record. ``destination`` and ``dead_letter``: retry the write if it is not
            acknowledged. None for no retry, so Dagster's retry policy receives the failure at once.
    """

    action: FaultAction | None = None
    retry: RecordRetryPolicy | None = None

    def __post_init__(self) -> None:
        if self.action is not None:
            # Its name is accepted too.
            object.__setattr__(self, "action", _action(self.action, "action"))


@dataclass(frozen=True, slots=True)
class FaultPolicies:
    """Actions and retries of an asset or an IO manager.

    Args:
        default: Action for all parts without their own action, except ``dead_letter``; or its name.
        source: Reading and decoding.
        stage: The user's stage, its rules and its row functions.
        destination: The topic that outputs are written to.
        dead_letter: Creating and writing dead letters. Its action is ``STOP`` or ``SKIP``.

    Raises:
        ConfigError: The action of ``dead_letter`` is not allowed.
    """

    default: FaultAction | None = None
    source: FaultPolicy = FaultPolicy()
    stage: FaultPolicy = FaultPolicy()
    destination: FaultPolicy = FaultPolicy()
    dead_letter: FaultPolicy = FaultPolicy()

    def __post_init__(self) -> None:
        if self.default is not None:
            object.__setattr__(self, "default", _action(self.default, "default"))
        if self.dead_letter.action not in (None, FaultAction.STOP, FaultAction.SKIP):
            msg = f"the policy of dead_letter has the action {self.dead_letter.action}"
            raise ConfigError(msg, fix="use FaultAction.STOP (the default), or SKIP, which loses the record")

    def action(self, component: Component) -> FaultAction:
        """Return the action for a record that failed in this component."""
        part = _PART_OF[component]
        own = self._of(part).action
        if own is None and part != "dead_letter":
            own = self.default
        return own or FaultAction.STOP

    def retry(self, part: Part | None) -> RecordRetryPolicy | None:
        """Return the retry policy of the failed part; None if it has none, or if the part is unknown (None)."""
        return None if part is None else self._of(part).retry

    def may(self, *actions: FaultAction) -> bool:
        """Return whether any part except ``dead_letter`` has one of these actions."""
        return any(self.action(c) in actions for c in Component if c is not Component.DEAD_LETTER)

    @property
    def may_stop(self) -> bool:
        """Whether a record that fails in some part except ``dead_letter`` stops the run."""
        return self.may(*_STOPS)

    def over(self, base: FaultPolicies) -> FaultPolicies:
        """Return these policies, with unset values taken from ``base``."""

        def merged(part: str) -> FaultPolicy:
            own, below = self._of(part), base._of(part)
            general = None if part == "dead_letter" else self.default
            return FaultPolicy(own.action or general or below.action, own.retry or below.retry)

        return FaultPolicies(self.default or base.default, **{part: merged(part) for part in PARTS})

    def _of(self, part: str) -> FaultPolicy:
        policy: FaultPolicy = getattr(self, part)
        return policy

    def to_config(self) -> dict[str, Any]:
        """Return plain JSON for asset metadata and configuration."""
        config: dict[str, Any] = {} if self.default is None else {"default": self.default.value}
        for part in PARTS:
            policy = self._of(part)
            settings: dict[str, Any] = {}
            if policy.action is not None:
                settings["action"] = policy.action.value
            if policy.retry is not None:
                settings["retry"] = policy.retry.to_config()
            if settings:
                config[part] = settings
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str) -> FaultPolicies:
        """Parse the output of ``to_config``, or the name of one action for all parts.

        Raises:
            ConfigError: A part, an action or a retry setting is unknown.
        """
        if isinstance(config, str):
            return cls(_action(config, "the action"))
        _known(config, {field.name for field in fields(cls)}, "the fault policies")
        default = config.get("default")
        parts = {part: _policy(config[part], part) for part in PARTS if part in config}
        return cls(None if default is None else _action(default, "default"), **parts)

    @classmethod
    def of(cls, declared: FaultAction | FaultPolicies | Mapping[str, Any] | str) -> FaultPolicies:
        """Convert a declaration to policies: an action, policies, their JSON, or an action's name.

        Raises:
            ConfigError: The declaration is none of these.
        """
        if isinstance(declared, FaultPolicies):
            return declared
        if isinstance(declared, str | Mapping):
            # FaultAction is a str.
            return cls.from_config(declared)
        msg = f"on_fault is {declared!r}, which is not a fault action or policy"
        raise ConfigError(msg, fix="use a FaultAction, or FaultPolicies(default=..., stage=FaultPolicy(...))")


def stops(action: FaultAction) -> bool:
    """Return whether the action fails the run."""
    return action in _STOPS


def _policy(config: Any, part: str) -> FaultPolicy:
    if isinstance(config, str):
        return FaultPolicy(_action(config, part))
    if not isinstance(config, Mapping):
        msg = f"the fault policy of {part} is {config!r}, which is not an action or a mapping"
        raise ConfigError(msg, fix='write it like {"action": "dead_letter", "retry": {...}}')
    _known(config, {"action", "retry"}, f"the fault policy of {part}")
    action, retry = config.get("action"), config.get("retry")
    return FaultPolicy(
        None if action is None else _action(action, part),
        None if retry is None else RecordRetryPolicy.from_config(retry),
    )


def _action(value: Any, what: str) -> FaultAction:
    try:
        return FaultAction(value)
    except ValueError:
        known = ", ".join(action.value for action in FaultAction)
        msg = f"{what} is {value!r}, which is not one of {known}"
        raise ConfigError(msg, fix="use a FaultAction, or its name") from None


def _known(config: Mapping[str, Any], names: set[str], what: str) -> None:
    unknown = sorted(set(config) - names)
    if unknown:
        msg = f"unknown names in {what}: {', '.join(map(repr, unknown))}"
        raise ConfigError(msg, fix=f"use {', '.join(sorted(names))}")
