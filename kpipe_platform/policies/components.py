"""What happens to a failed record by the part of the pipeline that it failed in, and what is tried again first.

The nearest declaration counts. For a record that failed in one part:

1. the action of the rule or row function that set it aside,
2. the asset's policy for that part,
3. the asset's action for all parts,
4. the IO manager's policy for that part,
5. the IO manager's action for all parts,
6. ``FaultAction.STOP``.

The part ``dead_letter`` takes no action for all parts: a dead letter that cannot be made stops the run, unless its own
policy says ``SKIP``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kpipe_platform.errors import ConfigError, Part
from kpipe_platform.policies.faults import Component, FaultAction
from kpipe_platform.policies.retry import RecordRetryPolicy

PARTS = ("source", "stage", "destination", "dead_letter")
"""Parts with a policy of their own. ``source`` is reading and decoding."""

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
        action: What happens to a record that fails there; None: what is said for all parts.
        retry: What is tried again before. ``source``: reading, when the brokers do not answer. ``stage``: the stage
            on a record that stands alone. ``destination`` and ``dead_letter``: the write, when it is not
            acknowledged. None: nothing is, and Dagster's own retry policy sees the failure at once.
    """

    action: FaultAction | None = None
    retry: RecordRetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class FaultPolicies:
    """Actions and retries of an asset, or of an IO manager.

    Args:
        default: Action for every part that says nothing itself.
        source: Reading and decoding.
        stage: The user's stage, its rules and its row functions.
        destination: The topic that outputs are written to.
        dead_letter: Making and writing dead letters. Its action is ``STOP`` or ``SKIP``.

    Raises:
        ConfigError: The action makes no sense for a dead letter.
    """

    default: FaultAction | None = None
    source: FaultPolicy = FaultPolicy()
    stage: FaultPolicy = FaultPolicy()
    destination: FaultPolicy = FaultPolicy()
    dead_letter: FaultPolicy = FaultPolicy()

    def __post_init__(self) -> None:
        if self.dead_letter.action not in (None, FaultAction.STOP, FaultAction.SKIP):
            msg = f"a dead letter that cannot be made cannot have the action {self.dead_letter.action}"
            raise ConfigError(msg, fix="use FaultAction.STOP (the default), or SKIP, which loses the record")

    def action(self, component: Component) -> FaultAction:
        """What happens to a record that failed in this component."""
        part = _PART_OF[component]
        own = self._of(part).action
        if own is None and part != "dead_letter":
            own = self.default
        return own or FaultAction.STOP

    def retry(self, part: Part | None) -> RecordRetryPolicy | None:
        """What is tried again when this part fails; nothing where nobody knows which part did."""
        return None if part is None else self._of(part).retry

    def may(self, *actions: FaultAction) -> bool:
        """Whether any part but ``dead_letter`` has one of these actions."""
        return any(self.action(c) in actions for c in Component if c is not Component.DEAD_LETTER)

    @property
    def may_stop(self) -> bool:
        """Whether a failed record of some part stops the run."""
        return self.may(*_STOPS)

    def over(self, base: FaultPolicies) -> FaultPolicies:
        """These policies, where they say something, else those of ``base``."""

        def merged(part: str) -> FaultPolicy:
            own, below = self._of(part), base._of(part)
            general = None if part == "dead_letter" else self.default
            return FaultPolicy(own.action or general or below.action, own.retry or below.retry)

        return FaultPolicies(self.default or base.default, **{part: merged(part) for part in PARTS})

    def _of(self, part: str) -> FaultPolicy:
        policy: FaultPolicy = getattr(self, part)
        return policy

    def to_config(self) -> dict[str, Any]:
        """Plain JSON: what asset metadata and configuration hold."""
        config: dict[str, Any] = {} if self.default is None else {"default": self.default.value}
        for part in PARTS:
            policy = self._of(part)
            said: dict[str, Any] = {}
            if policy.action is not None:
                said["action"] = policy.action.value
            if policy.retry is not None:
                said["retry"] = policy.retry.to_config()
            if said:
                config[part] = said
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str) -> FaultPolicies:
        """Read what ``to_config`` wrote, or one action's name for all parts.

        Raises:
            ConfigError: A part, an action or a retry setting is not known.
        """
        if isinstance(config, str):
            return cls(_action(config, "the action"))
        _known(config, {field.name for field in fields(cls)}, "fault policies")
        default = config.get("default")
        parts = {part: _policy(config[part], part) for part in PARTS if part in config}
        return cls(None if default is None else _action(default, "default"), **parts)

    @classmethod
    def of(cls, declared: FaultAction | FaultPolicies | Mapping[str, Any] | str) -> FaultPolicies:
        """What a user gave, in whichever form.

        Raises:
            ConfigError: It is none of them.
        """
        if isinstance(declared, FaultPolicies):
            return declared
        if isinstance(declared, str | Mapping):
            # FaultAction is a str.
            return cls.from_config(declared)
        msg = f"on_fault is {declared!r}"
        raise ConfigError(msg, fix="give a FaultAction, or FaultPolicies(default=..., stage=FaultPolicy(...))")


def stops(action: FaultAction) -> bool:
    """Whether the action fails the run."""
    return action in _STOPS


def _policy(config: Any, part: str) -> FaultPolicy:
    if isinstance(config, str):
        return FaultPolicy(_action(config, part))
    if not isinstance(config, Mapping):
        msg = f"the fault policy of {part} is {config!r}"
        raise ConfigError(msg, fix='{"action": "dead_letter", "retry": {...}}')
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
        raise ConfigError(msg, fix="use one of FaultAction") from None


def _known(config: Mapping[str, Any], names: set[str], what: str) -> None:
    unknown = sorted(set(config) - names)
    if unknown:
        msg = f"{what} have no {', '.join(map(repr, unknown))}"
        raise ConfigError(msg, fix=f"use {', '.join(sorted(names))}")
