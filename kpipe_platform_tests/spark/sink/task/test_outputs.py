"""Headers that the writer adds to outputs: where they came from, and what ties a chain of topics together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kpipe_platform.codecs import RawCodec
from kpipe_platform.dead_letters import correlation_id
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.model.sizes import record_size
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.spark.sink.spec import OutputTopic, WriterSpec
from kpipe_platform.spark.sink.task.outputs import OutputChecks, OutputRows

SETTINGS = ConnectionSettings(bootstrap_servers="localhost:1")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("partition", pa.int32()),
        ("timestamp_ms", pa.int64()),
        ("src", pa.int32()),
        ("src_offset", pa.int64()),
    ]
)


def spec(topic: str = "orders", **changes: Any) -> WriterSpec:
    ranges = tuple(PlannedRange(OffsetRange(topic, number, 0, 100), "id", 0, 100, 0) for number in (0, 3))
    fields: dict[str, Any] = {
        "settings": SETTINGS,
        "source_settings": SETTINGS,
        "slice": Slice("g", "run", "s", ranges),
        "mode": "transactional",
        "outputs": (OutputTopic("orders.priced", changes.pop("limits", TopicLimits())),),
        "dead_letters": (None, None),
        "policies": FaultPolicies(),
        "codecs": ((RawCodec(), RawCodec()),) * 2,
        "isolation": "read_committed",
    }
    return WriterSpec(**{**fields, **changes})


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    filled = [{"key": b"k", "value": b"v", "headers": [], **row} for row in rows]
    return pa.RecordBatch.from_pylist(filled, schema=SCHEMA)


def headers_of(output: pa.RecordBatch, chosen: WriterSpec) -> list[list[tuple[str, bytes | None]]]:
    return [row.headers for row in OutputRows(output, chosen).rows()]


def test_an_output_without_a_correlation_id_gets_the_one_that_a_dead_letter_of_its_source_would_have() -> None:
    (headers,) = headers_of(batch({"src": 1, "src_offset": 42}), spec())
    assert headers == [("correlation-id", b"orders-3-42"), ("kpipe.source", b"orders/3/42")]
    made = correlation_id(KafkaRecord("orders", 3, 42, value=b"v"), "correlation-id")
    assert dict(headers)["correlation-id"] == made.encode()


def test_a_correlation_id_that_is_there_is_carried_on_as_it_is() -> None:
    given = [{"key": "correlation-id", "value": b"abc"}, {"key": "kpipe.source", "value": b"earlier/0/1"}]
    (headers,) = headers_of(batch({"src": 0, "src_offset": 7, "headers": given}), spec())
    assert headers == [("correlation-id", b"abc"), ("kpipe.source", b"orders/0/7")]


@pytest.mark.parametrize("value", [None, b""])
def test_an_empty_correlation_id_counts_for_nothing_and_is_not_overwritten(value: bytes | None) -> None:
    given = [{"key": "correlation-id", "value": value}]
    (headers,) = headers_of(batch({"src": 0, "src_offset": 7, "headers": given}), spec())
    assert headers == [("correlation-id", value), ("correlation-id", b"orders-0-7"), ("kpipe.source", b"orders/0/7")]
    record = KafkaRecord("orders.priced", 0, 5, value=b"v", headers=tuple(headers))
    assert correlation_id(record, "correlation-id") == "orders-0-7"


def test_the_header_has_the_name_that_was_asked_for_or_none() -> None:
    output = batch({"src": 0, "src_offset": 7})
    assert headers_of(output, spec(correlation_header="x-request"))[0][0] == ("x-request", b"orders-0-7")
    assert headers_of(output, spec(correlation_header=None)) == [[("kpipe.source", b"orders/0/7")]]
    assert headers_of(output, spec(stamp_source=False)) == [[]]


def test_rows_of_one_batch_with_and_without_source_and_header() -> None:
    given = [{"key": "correlation-id", "value": b"abc"}]
    rows = batch({"src": 0, "src_offset": 1}, {"headers": given}, {}, {"src": 0, "src_offset": 2, "headers": given})
    assert headers_of(rows, spec()) == [
        [("correlation-id", b"orders-0-1"), ("kpipe.source", b"orders/0/1")],
        [("correlation-id", b"abc")],
        [],
        [("correlation-id", b"abc"), ("kpipe.source", b"orders/0/2")],
    ]


@pytest.mark.parametrize("topic", ["t", "t" * 249])
def test_an_output_that_only_the_added_headers_make_too_large_is_found_before_sending(topic: str) -> None:
    output = batch({"src": 1, "src_offset": 99, "value": b"v" * 2_000})
    (headers,) = headers_of(output, spec(topic))
    size = record_size(b"k", b"v" * 2_000, headers)
    limited = spec(topic, limits=TopicLimits(max_message_bytes=size - 1))
    found = OutputChecks(limited).rejected(OutputRows(output, limited))
    assert [fault.kind for fault in found.values()] == ["too_large"]
    fits = spec(topic, limits=TopicLimits(max_message_bytes=size))
    assert OutputChecks(fits).rejected(OutputRows(output, fits)) == {}


STAMPS = (("kpipe.instance", b"blue"), ("kpipe.worker", b"host-1/pid-7"), ("kpipe.lease", b"g.owners/m/3"))


@pytest.mark.parametrize("correlation", ["correlation-id", None])
@pytest.mark.parametrize("provenance", [(), STAMPS])
def test_a_batch_without_headers_of_its_own_gets_those_that_each_row_alone_would(
    correlation: str | None, provenance: tuple[tuple[str, bytes], ...]
) -> None:
    chosen = spec(provenance=provenance, correlation_header=correlation)
    sources = [(0, 0), (1, 99), (0, 2**53 + 1), (1, 2**63 - 2)]
    found = headers_of(batch(*({"src": src, "src_offset": offset} for src, offset in sources)), chosen)
    for headers, (src, offset) in zip(found, sources, strict=True):
        partition = (0, 3)[src]
        first = [] if correlation is None else [(correlation, f"orders-{partition}-{offset}".encode())]
        assert headers == [*first, *provenance, ("kpipe.source", f"orders/{partition}/{offset}".encode())]
    # A row with headers of its own in the batch, or without a source, changes nothing for the others.
    mixed = [{"src": src, "src_offset": offset} for src, offset in sources]
    mixed += [{"headers": [{"key": "mine", "value": b"1"}]}, {"src_offset": 5}]
    assert headers_of(batch(*mixed), chosen) == [*found, [("mine", b"1")], []]


def test_who_wrote_an_output_stands_beside_its_source_and_takes_the_place_of_an_earlier_hop() -> None:
    given = [
        {"key": "kpipe.lease", "value": b"earlier"},
        {"key": "mine", "value": b"1"},
        {"key": "kpipe.instance", "value": b"earlier"},
        {"key": "kpipe.source", "value": b"earlier/0/1"},
    ]
    rows = batch({"src": 0, "src_offset": 7, "headers": given}, {"headers": given[:2]})
    first, second = headers_of(rows, spec(provenance=STAMPS))
    assert first == [("mine", b"1"), ("correlation-id", b"orders-0-7"), *STAMPS, ("kpipe.source", b"orders/0/7")]
    assert second == [("kpipe.lease", b"earlier"), ("mine", b"1")], "its source is not known, so neither is its writer"
    assert dict(headers_of(rows, spec(provenance=STAMPS[:2]))[0]).get("kpipe.lease") is None
    assert headers_of(batch({"src": 0, "src_offset": 7}), spec(stamp_source=False, provenance=STAMPS)) == [[]]


def test_stamps_that_make_an_output_too_large_are_found_before_sending() -> None:
    long = (("kpipe.lease", b"l" * 5_000),)
    output = batch({"src": 1, "src_offset": 99, "value": b"v" * 2_000})
    (headers,) = headers_of(output, spec(provenance=long))
    limited = spec(provenance=long, limits=TopicLimits(max_message_bytes=record_size(b"k", b"v" * 2_000, headers) - 1))
    assert [fault.kind for fault in OutputChecks(limited).rejected(OutputRows(output, limited)).values()] == [
        "too_large"
    ]


@pytest.mark.parametrize(
    "given",
    [
        [[("a", b"1"), ("b", None)], [("b", b"2"), ("a", b"")]],
        [[("a", b"1")], [], [("a", b"2"), ("a", b"3"), ("c", b"4")], []],
        [[], [("a", b"1")]],
        [[("a", b"1")]] * 3,
    ],
    ids=["as many each", "some without", "first without", "one each"],
)
def test_headers_stay_with_their_row(given: list[list[tuple[str, bytes | None]]]) -> None:
    rows = [{"headers": [{"key": name, "value": value} for name, value in each]} for each in given]
    whole = batch({}, *rows, {})
    for output, expected in ((whole, [[], *given, []]), (whole.slice(1, len(given)), given)):
        assert headers_of(output, spec()) == expected
        messages = OutputRows(output, spec()).messages()
        assert [message[4] or [] for message in messages] == expected


@pytest.mark.parametrize(("partition", "is_taken"), [(None, True), (0, True), (2, True), (3, False), (-1, False)])
def test_a_partition_that_the_topic_does_not_have_is_found_before_sending(
    partition: int | None, is_taken: bool
) -> None:
    output = batch({"src": 0, "src_offset": 7, "partition": partition}, {"src": 1, "src_offset": 7, "partition": 1})
    found = OutputChecks(spec()).rejected(OutputRows(output, spec()), 3)
    assert {identity: fault.kind for identity, fault in found.items()} == ({} if is_taken else {(0, 7): "partition"})


def test_a_header_without_a_name_is_found_before_sending() -> None:
    named = {"key": "mine", "value": b"1"}
    given = [[named], [named, {"key": None, "value": b"1"}], [None], []]
    output = batch(*({"src": 0, "src_offset": offset, "headers": headers} for offset, headers in enumerate(given)))
    found = OutputChecks(spec()).rejected(OutputRows(output, spec()))
    assert {identity: fault.kind for identity, fault in found.items()} == {(0, 1): "header", (0, 2): "header"}
