"""How many records of a slice may fail before the run does, so that a broken deploy cannot drain a topic."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.bounds import is_count

DEFAULT_MINIMUM = 10


@dataclass(frozen=True, slots=True)
class DeadLetterLimit:
    """The largest share of a slice's records that may be dead-lettered or skipped.

    Args:
        ratio: The share, above 0 and up to 1; None: no limit.
        minimum: Failed records below which the share does not count: 1 of 2 is no outage.

    Raises:
        ConfigError: A number is out of its bounds.
    """

    ratio: float | None = None
    minimum: int = DEFAULT_MINIMUM

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0 < self.ratio <= 1:
            msg = f"the largest share of dead letters is {self.ratio}"
            raise ConfigError(msg, fix="set it above 0 and up to 1, for example 0.1; None for no limit")
        if not is_count(self.minimum, 1):
            msg = f"the number of failed records below which their share does not count is {self.minimum}"
            raise ConfigError(msg, fix="set it to 1 or more")

    def allows(self, failed: int, records: int) -> bool:
        """Whether so many failed of so many records may be dead letters."""
        if self.ratio is None or failed < self.minimum:
            return True
        return failed <= self.ratio * records


NO_LIMIT = DeadLetterLimit()
"""Any share of the records may fail."""
