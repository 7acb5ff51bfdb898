"""Commits that succeed without an answer, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kpipe_platform.errors import BrokerUnavailableError
from kpipe_platform.kafka.transactions.base import CommitStep, OffsetTransaction


def lose_commit_answers(monkeypatch: pytest.MonkeyPatch) -> list[CommitStep]:
    """Lose the answer to each commit of a transaction; returns the list of the lost ones, which grows."""
    lost: list[CommitStep] = []
    request = OffsetTransaction.request

    def losing(self: OffsetTransaction, step: CommitStep, call: Callable[[], Any]) -> None:
        request(self, step, call)
        if step is CommitStep.COMMIT:
            lost.append(step)
            raise BrokerUnavailableError(f"no answer to: {step.value}")

    monkeypatch.setattr(OffsetTransaction, "request", losing)
    return lost
