from __future__ import annotations

import pickle

import pytest

from kpipe_platform.kafka.model.records import KafkaRecord

READ = KafkaRecord("flights", 3, 42, 1_357_017_420_000, "create_time", b"\xff", b"{}", (("a", b"1"), ("a", None)))


def test_a_record_to_be_written_needs_no_place() -> None:
    record = KafkaRecord(key=b"N14228", value={"distance": 1400})
    assert (record.topic, record.partition, record.offset) == (None, None, None)
    assert (record.timestamp_ms, record.timestamp_type, record.headers) == (None, None, ())


def test_null_and_empty_are_different() -> None:
    assert KafkaRecord(key=None, value=None) != KafkaRecord(key=b"", value=b"")


def test_headers_keep_order_repeats_and_nulls() -> None:
    record = KafkaRecord(headers=[("b", b"1"), ("a", None), ("b", b"")])  # type: ignore[arg-type]
    assert record.headers == (("b", b"1"), ("a", None), ("b", b""))


@pytest.mark.parametrize(
    ("record", "text"), [(READ, "flights[3]@42"), (KafkaRecord(), "?[?]@?"), (KafkaRecord("t", 0), "t[0]@?")]
)
def test_coordinates(record: KafkaRecord, text: str) -> None:
    assert record.coordinates == text


@pytest.mark.parametrize("place", [{"offset": -1}, {"partition": -1}])
def test_there_are_no_sentinel_integers(place: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"-1.* has a negative partition or offset: use None"):
        KafkaRecord(topic="flights", **place)  # type: ignore[arg-type]


def test_records_pickle_hash_and_compare_by_value() -> None:
    copy = pickle.loads(pickle.dumps(READ))
    assert copy == READ
    assert hash(copy) == hash(READ)
