from __future__ import annotations

import io
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import (
    dual_schema_id_deserializer,
    header_schema_id_serializer,
    prefix_schema_id_deserializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.common.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from kpipe_platform.errors import DecodeFault
from kpipe_platform.registry.wire import (
    BAD_INDEXES,
    KEY_HEADER,
    TRUNCATED_FRAME,
    VALUE_HEADER,
    WRONG_MAGIC_BYTE,
    frame,
    frame_indexes,
    split,
    split_indexes,
)

IDS = st.integers(0, 2**31 - 1)
# A Protobuf file has fewer messages than this.
INDEXES = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)


@given(IDS, st.binary())
def test_an_id_in_front_is_read_and_written_as_confluents_serializer_does(schema_id: int, payload: bytes) -> None:
    theirs = prefix_schema_id_serializer(payload, None, SchemaId("AVRO", schema_id))
    assert frame(schema_id, payload) == theirs
    assert split(theirs) == (schema_id, payload)


@given(IDS, INDEXES, st.binary())
def test_protobuf_indexes_are_read_and_written_as_confluents_serializer_does(
    schema_id: int, indexes: list[int], payload: bytes
) -> None:
    theirs = prefix_schema_id_serializer(payload, None, SchemaId("PROTOBUF", schema_id, message_indexes=indexes))
    assert frame(schema_id, frame_indexes(indexes, payload)) == theirs
    assert split_indexes(split(theirs)[1]) == (tuple(indexes), payload)


@given(IDS, INDEXES, st.binary())
def test_confluents_deserializer_reads_ours(schema_id: int, indexes: list[int], payload: bytes) -> None:
    found = SchemaId("PROTOBUF")
    rest = prefix_schema_id_deserializer(frame(schema_id, frame_indexes(indexes, payload)), None, found)
    assert (found.id, found.message_indexes, rest.read()) == (schema_id, indexes, payload)


@given(st.uuids(), st.one_of(st.none(), INDEXES), st.sampled_from([MessageField.KEY, MessageField.VALUE]))
def test_an_id_in_a_header(guid: UUID, indexes: list[int] | None, part: str) -> None:
    context = SerializationContext("orders", part, [])
    payload = header_schema_id_serializer(
        b"data", context, SchemaId("PROTOBUF", guid=str(guid), message_indexes=indexes)
    )
    ((name, header),) = context.headers
    assert name == (KEY_HEADER if part == MessageField.KEY else VALUE_HEADER)
    assert payload == b"data"
    found, rest = split(header)
    assert found == guid
    assert rest == b"" if indexes is None else split_indexes(rest) == (tuple(indexes), b"")

    ours = frame(guid, b"" if indexes is None else frame_indexes(indexes))
    assert ours == header
    read = SchemaId("AVRO" if indexes is None else "PROTOBUF")
    dual_schema_id_deserializer(b"data", SerializationContext("orders", part, [(name, ours)]), read)
    assert (read.guid, read.message_indexes) == (guid, indexes)


@given(st.binary(max_size=40))
def test_any_bytes_split_or_are_a_fault(data: bytes) -> None:
    theirs = SchemaId("AVRO")
    if (len(data) >= 5 and data[0] == 0) or (len(data) >= 17 and data[0] == 1):
        found, rest = split(data)
        assert frame(found, rest) == data
        assert theirs.from_bytes(io.BytesIO(data)).read() == rest
        assert found in (theirs.id, theirs.guid)
    else:
        with pytest.raises(DecodeFault) as fault:
            split(data)
        assert fault.value.kind == (WRONG_MAGIC_BYTE if data and data[0] > 1 else TRUNCATED_FRAME)
        with pytest.raises(Exception):  # noqa: B017, PT011  # theirs raises several
            theirs.from_bytes(io.BytesIO(data))


@given(st.binary(max_size=12))
def test_any_indexes_split_or_are_a_fault(data: bytes) -> None:
    fault = None
    try:
        indexes, rest = split_indexes(data)
    except DecodeFault as error:
        fault = error
    if fault is not None:
        assert fault.kind == BAD_INDEXES
        return
    buffer = io.BytesIO(data)
    assert tuple(SchemaId._read_index_array(buffer)) == indexes
    assert buffer.read() == rest


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"", TRUNCATED_FRAME, "there are 0 bytes"),
        (b"\x00\x00\x00", TRUNCATED_FRAME, "only 3 bytes, but the magic byte and the id of the schema take 5"),
        (b"\x01" + b"g" * 15, TRUNCATED_FRAME, "only 16 bytes, but the magic byte and the id of the schema take 17"),
        (b'{"a": 1}', WRONG_MAGIC_BYTE, "the first byte is 0x7b, not the magic byte 0x00 or 0x01"),
    ],
)
def test_messages_of_bad_frames(data: bytes, kind: str, message: str) -> None:
    with pytest.raises(DecodeFault, match=message) as caught:
        split(data)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends within the Protobuf message path, after 0 bytes"),
        (b"\x80", "ends within the Protobuf message path, after 1 bytes"),
        (b"\x04\x00", "should have 2 indexes, but only 1 bytes follow"),
        (b"\x02\x01", "the negative number -1"),
        (b"\x01", "the negative number -1"),
        (b"\xff\xff\xff\xff\xff\x01", "a number of more than 5 bytes"),
    ],
)
def test_messages_of_bad_indexes(data: bytes, message: str) -> None:
    with pytest.raises(DecodeFault, match=message):
        split_indexes(data)


def test_the_first_message_takes_one_byte() -> None:
    assert frame_indexes([0], b"data") == b"\x00data"
    assert split_indexes(b"\x00data") == ((0,), b"data")
