from __future__ import annotations

import pytest

from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts

STORED = CommitMetadata(
    "id-1", "r" * 36, "s" * 16, "kpipe.asset.topic.12", 9_999_999_999, SliceCounts(10**9, 10**9, 7, 3), at_ms=10**13
)


def test_round_trip() -> None:
    assert CommitMetadata.from_text(STORED.to_text()) == STORED


def test_what_a_later_version_adds_is_left_out() -> None:
    assert CommitMetadata.from_text(STORED.to_text()[:-1] + ',"more":[1]}') == STORED


def test_it_fits_the_brokers_limit_by_far() -> None:
    # offset.metadata.max.bytes is 4,096 by default.
    assert len(STORED.to_text()) < 400


@pytest.mark.parametrize("text", [None, "", "plain text", "{}", '{"kpipe": 2}', '{"kpipe": 1}', "[1]", "7", "null"])
def test_what_other_tools_wrote_is_not_ours(text: str | None) -> None:
    assert CommitMetadata.from_text(text) is None


def test_counts_add_up() -> None:
    assert SliceCounts(1, 2, 3, 4) + SliceCounts(10, 20, 30, 40) == SliceCounts(11, 22, 33, 44)
