"""What a run took of its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kpipe_platform.errors import PartitionsFailedError
from kpipe_platform.io_managers.tally import Tally


@dataclass
class Taken:
    """What a run took of one Kafka partition, or of all of them together.

    Args:
        tally: The slices that are committed.
        error: Why it stopped early; None when it did not.
    """

    tally: Tally = field(default_factory=Tally)
    error: Exception | None = None


def partitions_failed(failed: Mapping[int, Exception], done: list[int]) -> Exception:
    """The error of a range run of which some partitions failed."""
    if len(failed) == 1 and not done:
        return next(iter(failed.values()))
    listed = "\n".join(f"    partition {number}: {error}" for number, error in sorted(failed.items()))
    msg = f"{len(failed)} of {len(failed) + len(done)} partitions failed, the others are committed:\n{listed}"
    return PartitionsFailedError(
        msg, fix="mend the cause and run the failed partitions again", errors=dict(failed), done=done
    )
