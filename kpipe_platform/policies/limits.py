"""Limit on the failed records of a slice, so that a faulty release cannot dead-letter a whole topic."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.bounds import is_count

DEFAULT_MINIMUM = 10


@dataclass(frozen=True, slots=True)
class DeadLetterLimit:
    """Maximum share of a slice's records that may be dead-lettered or skipped.

    Args:
        ratio: The share, above 0 and up to 1; None (the default) for no limit.
        minimum: Number of failed records, 10 by default, below which the share is not checked, because 1 failure in 2
            records is not an outage.

    Raises:
        ConfigError: A number is out of bounds.
    """

    ratio: float | None = None
    minimum: int = DEFAULT_MINIMUM

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0 < self.ratio <= 1:
            msg = f"the maximum share of dead letters is {self.ratio}"
            raise ConfigError(msg, fix="set it above 0 and up to 1, for example 0.1, or to None for no limit")
        if not is_count(self.minimum, 1):
            msg = f"the minimum number of failed records for the dead-letter limit is {self.minimum}"
            raise ConfigError(msg, fix="set it to 1 or more")

    def allows(self, failed: int, records: int) -> bool:
        """Return whether ``failed`` of ``records`` records may be dead-lettered or skipped."""
        if self.ratio is None or failed < self.minimum:
            return True
        return failed <= self.ratio * records


NO_LIMIT = DeadLetterLimit()
"""No limit: any share of the records may fail."""
