"""What a member owns, change by change."""

from __future__ import annotations

from kpipe_platform.kafka.ownership.status import NONE, Assignment

P0, P1, P2 = ("t", 0), ("t", 1), ("t", 2)


def test_a_member_that_was_let_in_without_partitions_owns_nothing() -> None:
    assert not Assignment().joined
    assert Assignment().assign(NONE) == Assignment(joined=True)


def test_draining_partitions_are_neither_owned_nor_free() -> None:
    assignment = Assignment().assign(frozenset({P0, P1})).drain(frozenset({P1}))
    assert (assignment.owned, assignment.draining) == ({P0}, {P1})
    assignment = assignment.revoke(frozenset({P1}))
    assert (assignment.owned, assignment.draining, assignment.lost) == ({P0}, NONE, NONE)
    assert assignment.joined


def test_a_member_that_was_removed_owns_nothing_until_it_is_let_in_again() -> None:
    lost = Assignment().assign(frozenset({P0, P1, P2})).drain(frozenset({P2})).lose()
    assert (lost.joined, lost.owned, lost.draining, lost.lost) == (False, NONE, NONE, {P0, P1, P2})
    back = lost.assign(frozenset({P0}))
    assert (back.joined, back.owned, back.lost) == (True, {P0}, {P1, P2})


def test_each_change_has_a_number_and_an_empty_one_has_none() -> None:
    given = Assignment().assign(frozenset({P0, P1}))
    assert [given.changes, given.assign(NONE).changes, given.assign(frozenset({P2})).changes] == [1, 1, 2]
    draining = given.drain(frozenset({P1}))
    assert [draining.changes, draining.revoke(frozenset({P1})).changes] == [1, 2]
    assert [draining.lose().changes, draining.lose().lose().changes] == [2, 2]
