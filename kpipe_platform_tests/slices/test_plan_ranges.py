"""Planning is pure: a table of facts and what they lead to. No broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from kpipe_platform import KafkaConnection, KafkaSource
from kpipe_platform.errors import (
    ConfigError,
    ForeignMemberError,
    KpipeError,
    LostRangeError,
    NoStartOffsetError,
    OffsetsVanishedError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from kpipe_platform.kafka.admin.groups import CommittedOffset, GroupMember, refuse_foreign_members
from kpipe_platform.kafka.admin.topics import TopicDescription, check_partitions
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.offsets import OffsetRange, Watermarks
from kpipe_platform.kafka.model.slices import PlannedRange, Slice, transactional_id
from kpipe_platform.slices.plan.ranges import LastMaterialization, PartitionFacts, PlanPolicy, plan_range, plan_slice


def facts(committed: int | None = None, log_start: int = 0, end: int = 100, **changes: Any) -> PartitionFacts:
    stored = None if committed is None else CommittedOffset(committed, stored_by(changes.pop("stored_id", "id-1")))
    return PartitionFacts("t", 3, "id-1", Watermarks(log_start, end), stored, **changes)


def stored_by(topic_id: str, unit: str = "kpipe.a/t/3") -> CommitMetadata:
    return CommitMetadata(topic_id, "run-0", "s-0", unit, 0, SliceCounts(1, 1, 0, 0))


def policy(**changes: Any) -> PlanPolicy:
    return PlanPolicy(group="kpipe.a", **changes)


LEFT = LastMaterialization(77, "id-1", "kpipe.a")
"""Where this group left the partition, as Dagster holds it."""
OF_THE_RUN = LastMaterialization(77, "id-1")
OF_ANOTHER_TOPIC = LastMaterialization(77, "id-0")


@pytest.mark.parametrize(
    ("given", "how", "start", "end"),
    [
        pytest.param(facts(10), policy(), 10, 100, id="from the committed offset to the end"),
        pytest.param(facts(10), policy(max_records=30), 10, 40, id="at most max_records"),
        pytest.param(facts(90), policy(max_records=30), 90, 100, id="no further than the end"),
        pytest.param(facts(100), policy(), 100, 100, id="nothing new is an empty range"),
        pytest.param(facts(None), policy(), 0, 100, id="new group from the earliest"),
        pytest.param(facts(None, log_start=7), policy(), 7, 100, id="earliest is the log start"),
        pytest.param(facts(None), policy(start="latest"), 100, 100, id="new group from the latest"),
        pytest.param(facts(None, start_offset=42), policy(start=1000), 42, 100, id="from a time"),
        pytest.param(facts(None, 7, is_added=True), policy(start="latest"), 7, 100, id="all of an added partition"),
        pytest.param(facts(None, 7, is_added=True), policy(start=1000), 7, 100, id="all of it, too, from a time"),
        pytest.param(facts(None, start_offset=None), policy(start=1000), 100, 100, id="from a time after all records"),
        pytest.param(facts(None, start_offset=120), policy(start=1000), 100, 100, id="a time past the stable end"),
        pytest.param(facts(10, log_start=50), policy(on_lost_offsets="skip"), 50, 100, id="skip what was lost"),
        pytest.param(facts(10, log_start=10), policy(), 10, 100, id="a log that begins at the offset lost nothing"),
        pytest.param(facts(10, log_start=100), policy(on_lost_offsets="skip"), 100, 100, id="skip to an empty log"),
        pytest.param(facts(130, log_end=150), policy(), 130, 130, id="past an open transaction waits for its end"),
        pytest.param(facts(150, log_end=150), policy(max_records=3), 150, 150, id="at the end of the log"),
        pytest.param(
            facts(None, last_materialization=LEFT), policy(start="latest"), 77, 100, id="vanished: where Dagster ended"
        ),
        pytest.param(
            facts(None, log_start=90, last_materialization=LEFT),
            policy(on_lost_offsets="skip"),
            90,
            100,
            id="vanished and lost",
        ),
        pytest.param(
            facts(None, end=70, log_end=80, last_materialization=LEFT),
            policy(),
            77,
            77,
            id="vanished, past an open transaction",
        ),
        pytest.param(
            facts(None, end=70, last_materialization=LEFT),
            policy(),
            77,
            77,
            id="perhaps past the end: the run will see",
        ),
    ],
)
def test_range(given: PartitionFacts, how: PlanPolicy, start: int, end: int) -> None:
    assert plan_range(given, how).range == OffsetRange("t", 3, start, end)


def test_a_skipped_loss_is_recorded_and_the_compare_stays_with_the_stored_offset() -> None:
    planned = plan_range(facts(10, log_start=50), policy(on_lost_offsets="skip"))
    assert planned.lost == OffsetRange("t", 3, 10, 50)
    assert planned.committed == 10


def test_going_on_from_what_dagster_holds_is_marked_and_compares_with_no_offset() -> None:
    planned = plan_range(facts(None, log_start=90, last_materialization=LEFT), policy(on_lost_offsets="skip"))
    assert (planned.resumed, planned.committed, planned.lost) == (True, None, OffsetRange("t", 3, 77, 90))
    assert not plan_range(facts(None), policy()).resumed
    assert not plan_range(facts(77, last_materialization=LEFT), policy()).resumed


def test_an_offset_past_the_stable_end_has_no_backlog() -> None:
    planned = plan_range(facts(130, log_end=150), policy())
    assert (planned.backlog, planned.is_past_stable) == (0, True)
    assert not plan_range(facts(100, log_end=150), policy()).is_past_stable


def test_the_backlog_is_what_waits_behind_the_range() -> None:
    assert plan_range(facts(10), policy(max_records=30)).backlog == 60


@pytest.mark.parametrize(
    ("given", "how", "error", "says"),
    [
        (facts(10, log_start=50), policy(), LostRangeError, ["[10, 50)", "t/3", "--to earliest"]),
        (facts(10, stored_id="id-0"), policy(), TopicRecreatedError, ["id-0", "id-1", "kpipe offsets set"]),
        (facts(101), policy(), TopicRecreatedError, ["101", "past the log end 100"]),
        (facts(151, log_end=150), policy(), TopicRecreatedError, ["151", "past the log end 150"]),
        (
            facts(None, last_materialization=OF_THE_RUN),
            policy(),
            OffsetsVanishedError,
            ["offset 77", "--to 77 --new-group"],
        ),
        (facts(None), policy(start="error"), NoStartOffsetError, ['start="error"', "kpipe offsets set kpipe.a t"]),
        (
            facts(None, last_materialization=OF_THE_RUN),
            policy(start="latest"),
            OffsetsVanishedError,
            ["no offset"],
        ),
        (
            facts(None, last_materialization=LastMaterialization(77, "id-1", "old.a")),
            policy(),
            OffsetsVanishedError,
            ["offset 77 of group old.a", "renamed", "--to 77 --new-group"],
        ),
        (
            facts(None, last_materialization=replace(LEFT, topic_id="id-0")),
            policy(),
            TopicRecreatedError,
            ["ended at offset 77", "id-0"],
        ),
        (
            facts(None, log_end=100, last_materialization=replace(LEFT, end=101)),
            policy(),
            TopicRecreatedError,
            ["ended at offset 101", "past the log end 100"],
        ),
        (
            facts(None, log_start=90, last_materialization=LEFT),
            policy(),
            LostRangeError,
            ["[77, 90)", "--to earliest --new-group"],
        ),
        (
            facts(None, last_materialization=OF_ANOTHER_TOPIC),
            policy(),
            TopicRecreatedError,
            ["ended at offset 77", "id-0"],
        ),
    ],
)
def test_refusals_say_what_where_and_how(
    given: PartitionFacts, how: PlanPolicy, error: type[KpipeError], says: list[str]
) -> None:
    with pytest.raises(error) as caught:
        plan_range(given, how)
    for part in says:
        assert part in str(caught.value)
    assert caught.value.topic == "t"
    assert caught.value.partition == 3


def test_an_offset_moved_by_another_tool_has_no_topic_id_to_compare() -> None:
    moved = PartitionFacts("t", 3, "id-1", Watermarks(0, 100), CommittedOffset(40, None))
    assert plan_range(moved, policy()).range.start == 40


def test_a_slice_names_one_transactional_id_for_its_partitions() -> None:
    assert plan_slice([facts(0)], policy(), run_id="r", slice_id="s").transactional_id == "kpipe.a/t/3"
    both = [OffsetRange("t", 0, 0, 1), OffsetRange("t", 1, 0, 1)]
    assert transactional_id("kpipe.a", both) == "kpipe.a/t/all"
    joined = [OffsetRange("t", 2, 0, 1), OffsetRange("s", 2, 0, 1)]
    assert transactional_id("kpipe.a", joined) == "kpipe.a/s/2"


def ids_of(stream: tuple[list[str], str, int, int]) -> set[str]:
    """Every transactional id that a stream may use."""
    parts, topic, partition, lane = stream
    source = KafkaSource(connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    ranges = (PlannedRange(OffsetRange(topic, partition, 0, 1), "id", 0, 1, None),)
    whole = Slice(source.group(dg.AssetKey(parts)), "r", "s", ranges)
    each = replace(whole, lane=lane)
    return {each.transactional_id, each.probe_id}


STREAMS = st.tuples(
    st.lists(st.text("ab/0_-", min_size=1, max_size=3) | st.just("lane-1") | st.just("all"), min_size=1, max_size=3),
    st.text("ab.0_-", min_size=1, max_size=5),
    st.integers(0, 11),
    st.integers(0, 2),
)


@given(STREAMS, STREAMS)
@example((["orders"], "eu.pay", 0, 0), (["orders", "eu"], "pay", 0, 0))
@example((["a", "b"], "t", 0, 0), (["a"], "b.t", 0, 0))
@example((["a"], "b.t", 1, 0), (["a"], "b", 1, 1))
def test_no_two_streams_share_a_transactional_id(
    one: tuple[list[str], str, int, int], other: tuple[list[str], str, int, int]
) -> None:
    assert one == other or ids_of(one).isdisjoint(ids_of(other))


def stage(orders: DataFrame) -> DataFrame:
    return orders


def test_a_part_of_a_key_with_a_dot_would_share_a_group() -> None:
    source = KafkaSource(connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"key=\['a', 'b', 'c'\] has the same consumer group"):
        source.group(dg.AssetKey(["a.b", "c"]))
    assert source.group(dg.AssetKey(["a", "b", "c"])) == "kpipe.a.b.c"


def test_an_id_of_an_earlier_version_stays_so_that_its_runs_are_fenced() -> None:
    """Two runs of one partition under two ids could both pass the compare, and both commit."""
    before = PartitionFacts(
        "t", 3, "id-1", Watermarks(0, 100), CommittedOffset(5, stored_by("id-1", unit="kpipe.a.t.3"))
    )
    planned = plan_slice([before], policy(), run_id="r", slice_id="s")
    assert (planned.transactional_id, planned.fence) == ("kpipe.a.t.3", ())
    assert planned.rest([7], [6]).transactional_id == "kpipe.a.t.3"
    assert replace(planned, lane=1).probe_id == "kpipe.a.t.3.lane-1.probe"
    # That of another stream does not.
    other = replace(before, committed=CommittedOffset(5, stored_by("id-1", unit="kpipe.b.t.3")))
    planned = plan_slice([other], policy(), run_id="r", slice_id="s")
    assert (planned.transactional_id, planned.fence) == ("kpipe.a/t/3", ("kpipe.b.t.3",))


def test_a_layout_change_fences_who_committed_before() -> None:
    before = PartitionFacts(
        "t", 3, "id-1", Watermarks(0, 100), CommittedOffset(5, stored_by("id-1", unit="kpipe.a.t.all"))
    )
    assert plan_slice([before], policy(), run_id="r", slice_id="s").fence == ("kpipe.a.t.all",)
    assert plan_slice([facts(5)], policy(), run_id="r", slice_id="s").fence == ()


def test_empty_and_moving_slices() -> None:
    empty = plan_slice([facts(100)], policy(), run_id="r", slice_id="s")
    assert (empty.is_empty, empty.moves_offsets) == (True, False)
    new = plan_slice([facts(None)], policy(start="latest"), run_id="r", slice_id="s")
    assert (new.is_empty, new.moves_offsets) == (True, True)


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("stored_ms", "now_ms", "renews"),
    [
        (HOUR_MS, 2 * HOUR_MS - 1, False),
        (HOUR_MS, 2 * HOUR_MS, True),
        (HOUR_MS, None, False),
        # By an older version, or by a clock that was ahead.
        (None, HOUR_MS, True),
        (9 * HOUR_MS, HOUR_MS, True),
    ],
)
def test_an_empty_slice_renews_an_offset_before_the_brokers_forget_it(
    stored_ms: int | None, now_ms: int | None, renews: bool
) -> None:
    at = PartitionFacts(
        "t", 3, "id-1", Watermarks(0, 100), CommittedOffset(100, replace(stored_by("id-1"), at_ms=stored_ms))
    )
    empty = plan_slice([at], policy(), run_id="r", slice_id="s", now_ms=now_ms)
    assert (empty.is_empty, empty.moves_offsets) == (True, renews)


def test_foreign_members_are_named() -> None:
    refuse_foreign_members("g", [])
    with pytest.raises(ForeignMemberError, match=r"rival-client at /127\.0\.0\.1"):
        refuse_foreign_members("g", [GroupMember("m-1", "rival-client", "/127.0.0.1")])


def test_a_partition_that_the_topic_lacks() -> None:
    with pytest.raises(TopicNotFoundError, match=r"has no partition 4: it has 4 \(0 to 3\)"):
        check_partitions({"t": TopicDescription("t", "id", 4)}, [("t", 4)])


@pytest.mark.parametrize(("start", "end", "partition"), [(-1, 5, 0), (5, 4, 0), (0, 1, -1)])
def test_a_range_takes_no_sentinels(start: int, end: int, partition: int) -> None:
    with pytest.raises(ValueError, match="not an offset range"):
        OffsetRange("t", partition, start, end)
