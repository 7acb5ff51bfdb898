"""The codec agrees with the Protobuf runtime, one by one and in batches."""

from __future__ import annotations

import datetime as dt
import math
import pprint
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from kpipe_platform.codecs.faults import DecodeFault, EncodeFault
from kpipe_platform.codecs.protobuf import types as P
from kpipe_platform.codecs.protobuf.arrow import arrow_converter
from kpipe_platform.codecs.protobuf.descriptors import message_type
from kpipe_platform.codecs.protobuf.messages import MessageCodec
from kpipe_platform.spark._compat import to_arrow_type
from kpipe_platform_tests.codecs.protobuf.schemas import BROAD, JSONS, PROTO2, codec_of

_UTC = dt.timezone.utc


@cache
def broad() -> MessageCodec:
    return codec_of(BROAD, "broad.All")


def kind_of(codec: MessageCodec) -> pa.DataType:
    return to_arrow_type(codec.value_type, timezone="UTC")


def class_of(codec: MessageCodec) -> Any:
    return GetMessageClass(message_type(codec.descriptors, codec.message))


def one_by_one(codec: MessageCodec, records: list[bytes | None]) -> pa.Array:
    values = []
    for each in records:
        try:
            values.append(codec.decode(each))
        except DecodeFault:
            values.append(None)
    return pa.array(values, kind_of(codec))


def values_of(array: pa.Array) -> list[Any]:
    return array.to_pylist(maps_as_pydicts="strict")


def in_batch(codec: MessageCodec, records: list[bytes | None]) -> pa.Array:
    return codec.decode_batch(pa.array(records, pa.binary()), kind_of(codec))


def sorted_repr(array: pa.Array) -> str:
    """Text to compare, because NaN does not equal itself."""
    return pprint.pformat(values_of(array), sort_dicts=True)


# Random messages

_RANGES = {
    **dict.fromkeys((P.INT32, P.SINT32, P.SFIXED32), (-(2**31), 2**31 - 1)),
    **dict.fromkeys((P.INT64, P.SINT64, P.SFIXED64), (-(2**63), 2**63 - 1)),
    **dict.fromkeys((P.UINT32, P.FIXED32), (0, 2**32 - 1)),
    **dict.fromkeys((P.UINT64, P.FIXED64), (0, 2**64 - 1)),
}


def scalar(field: Any, chance: Random) -> Any:
    if field.type in _RANGES:
        low, high = _RANGES[field.type]
        return chance.choice([0, 1, low, high, chance.randint(low, high)])
    if field.type == P.ENUM:
        numbers = [each.number for each in field.enum_type.values]
        return chance.choice(numbers if field.enum_type.is_closed else [*numbers, chance.randint(-(2**31), 2**31 - 1)])
    if field.type == P.DOUBLE:
        return chance.choice([0.0, -0.0, 1e308, 5e-324, math.inf, -math.inf, chance.uniform(-1e9, 1e9)])
    if field.type == P.FLOAT:
        return chance.choice([0.0, -0.0, 0.5, math.inf, -1024.25])
    if field.type == P.BOOL:
        return chance.random() < 0.5
    text = "".join(chance.choices('a\x00é€😀\\"', k=chance.randint(0, 4)))
    return text if field.type == P.STRING else text.encode("utf-16")


def set_field(message: Any, field: Any, chance: Random) -> None:
    if P.is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for _ in range(chance.randint(0, 3)):
            one = scalar(key, chance)
            if value.message_type is None:
                getattr(message, field.name)[one] = scalar(value, chance)
            else:
                fill(getattr(message, field.name)[one], chance)
    elif field.is_repeated and field.message_type is not None:
        for _ in range(chance.randint(0, 3)):
            fill(getattr(message, field.name).add(), chance)
    elif field.is_repeated:
        getattr(message, field.name).extend(scalar(field, chance) for _ in range(chance.randint(0, 3)))
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
        fill(getattr(message, field.name), chance)
    else:
        setattr(message, field.name, scalar(field, chance))


def fill(message: Any, chance: Random) -> None:
    name = message.DESCRIPTOR.full_name
    if name == P.TIMESTAMP:
        message.seconds = chance.choice(
            [P.MIN_SECONDS, P.MAX_SECONDS, -1, chance.randint(P.MIN_SECONDS, P.MAX_SECONDS)]
        )
        message.nanos = chance.randint(0, 999_999) * 1000
    elif name == P.DURATION:
        sign = chance.choice([-1, 1])
        message.seconds = sign * chance.choice([0, P.MAX_DURATION_S - 1, chance.randint(0, P.MAX_DURATION_S - 1)])
        message.nanos = sign * chance.randint(0, 999_999) * 1000
    else:
        share = chance.choice([0.05, 0.3, 1.0])
        for field in message.DESCRIPTOR.fields:
            if field.is_required or chance.random() < share:
                set_field(message, field, chance)


def random_messages(codec: MessageCodec, chance: Random, count: int) -> list[Any]:
    made = [class_of(codec)() for _ in range(count)]
    for each in made:
        fill(each, chance)
    return made


_EXAMPLES = settings(max_examples=60, deadline=None)


@_EXAMPLES
@given(st.integers(0, 2**32))
def test_random_messages_decode_alike_and_round_trip(seed: int) -> None:
    codec, chance = broad(), Random(seed)
    made = random_messages(codec, chance, chance.randint(1, 4))
    records = [each.SerializeToString() for each in made]

    found = in_batch(codec, records)
    assert values_of(found) == values_of(one_by_one(codec, records))

    encoded, misfits = codec.encode_batch(found)
    assert misfits.to_pylist() == [None] * len(records)
    parse = class_of(codec).FromString
    assert [parse(each) for each in encoded.to_pylist()] == made
    assert [parse(codec.encode(each)) for each in values_of(found)] == made


def test_usual_messages_are_converted_as_a_batch() -> None:
    codec = broad()
    converter = arrow_converter(codec.descriptors, codec.message)
    records = [each.SerializeToString() for each in random_messages(codec, Random(1), 20)]
    found = converter.decode(pa.array(records, pa.binary()), kind_of(codec))
    assert values_of(found) == values_of(one_by_one(codec, records))


def test_a_part_of_a_batch_is_encoded() -> None:
    codec = broad()
    converter = arrow_converter(codec.descriptors, codec.message)
    made = [class_of(codec)(i32=i, ri=range(i), msi={f"{i}": i}, rm=[{"xs": [i]}], m={"n": i}) for i in range(9)]
    found = in_batch(codec, [each.SerializeToString() for each in made])
    assert converter.encode(found.slice(3, 5)).to_pylist() == converter.encode(found).to_pylist()[3:8]


@_EXAMPLES
@given(st.integers(0, 2**32))
def test_proto2_messages_round_trip(seed: int) -> None:
    codec = codec_of(PROTO2, "p2.M")
    (made,) = random_messages(codec, Random(seed), 1)
    value = codec.decode(made.SerializeToString())
    # A field that is not set is written if it has a default, because the column has the default.
    assert codec.decode(codec.encode(value)) == value


@_EXAMPLES
@given(st.integers(0, 2**32))
def test_damaged_records_decode_alike(seed: int) -> None:
    codec, chance = broad(), Random(seed)
    records = []
    for each in random_messages(codec, chance, 20):
        record = bytearray(each.SerializeToString())
        for _ in range(chance.randint(0, 3)):
            if record:
                record[chance.randrange(len(record))] = chance.randrange(256)
        records.append(bytes(record[: chance.choice([len(record), chance.randint(0, len(record))])]))
    assert sorted_repr(in_batch(codec, records)) == sorted_repr(one_by_one(codec, records))


# Bad records among good ones

_TIMESTAMP, _DURATION = 30, 31


def field(number: int, content: bytes) -> bytes:
    tag = number << 3 | 2
    return bytes([tag & 0x7F | 0x80, tag >> 7] if tag > 127 else [tag]) + bytes([len(content)]) + content


def time(number: int, seconds: int, nanos: int) -> bytes:
    from google.protobuf.timestamp_pb2 import Timestamp

    return field(number, Timestamp(seconds=seconds, nanos=nanos).SerializeToString())


BAD = {
    "text": (b"hello world, this is text", "not a message of type broad.All: "),
    "truncated": (b"\x72\x05A", "field s should have 5 bytes, but only 1 follow"),
    "utf8": (b"\x72\x02\xff\xfe", "field s is not UTF-8: byte 0xff at position 0"),
    "nested_utf8": (field(17, b"\x0a\x01\xff"), "field m.name is not UTF-8"),
    "year_10000": (time(_TIMESTAMP, 253_402_300_800, 0), "'ts' is not a valid Timestamp: 253402300800 seconds"),
    "year_0": (time(_TIMESTAMP, -62_135_596_801, 0), "'ts' is not a valid Timestamp"),
    "huge": (time(_TIMESTAMP, 2**62, 0), "'ts' is not a valid Timestamp"),
    "nanos": (time(_TIMESTAMP, 0, 2_000_000_000), "and 2000000000 nanoseconds"),
    "negative_nanos": (time(_TIMESTAMP, 0, -5), "and -5 nanoseconds"),
    "nested_time": (field(17, time(4, 253_402_300_800, 0)[1:]), ""),
    "repeated_time": (time(41, 0, -5), "'rts[0]' is not a valid Timestamp"),
    "duration": (time(_DURATION, 2**40, 0), "'du' is not a valid Duration"),
    "signs": (time(_DURATION, 5, -5), "'du' is not a valid Duration: 5 seconds and -5 nanoseconds"),
    "field_0": (b"\x00\x01", "byte 0 does not begin a field"),
    "end_group": (b"\xb4\x04", "byte 0 does not begin a field (number 70, wire type 4)"),
    "open_group": (b"\xdb\x04\x08\x01", "the data ends within field 75, a group"),
    "long_number": (b"\x18" + b"\xff" * 10 + b"\x01", "a number of more than 10 bytes, in field i32"),
}
BAD.pop("nested_time")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_found_among_good_ones(name: str) -> None:
    bad, reason = BAD[name]
    codec, made = broad(), class_of(broad())
    good = [made(i32=i, s=f"text {i}", ri=[i], msi={"a": i}).SerializeToString() for i in range(300)]
    records: list[bytes | None] = [*good[:170], bad, None, *good[170:]]

    found = in_batch(codec, records)

    assert [i for i, each in enumerate(found.to_pylist()) if each is None] == [170, 171]
    assert [each["i32"] for each in found.to_pylist() if each is not None] == list(range(300))
    assert reason in codec.explain(bad).message


# Messages that ptars and the runtime treat differently

SUBTLE = {
    "unknown_enum": b"\x80\x01\x07",
    "two_of_a_oneof": b"\xda\x01\x01x\xe0\x01\x01",
    "oneof_again": b"\xea\x01\x03\n\x01a\xe0\x01\x01\xea\x01\x02\x10\x03",
    "duplicate_key": field(24, b"\x0a\x01a\x10\x01")
    + field(24, b"\x0a\x01b\x10\x03")
    + field(24, b"\x0a\x01a\x10\x02"),
    "no_key": field(24, b"\x10\x05"),
    "no_value": field(25, b"\x08\x05"),
    "merged": field(17, b"\x0a\x01a") + field(17, b"\x10\x03"),
    "merged_time": time(_TIMESTAMP, 5, 0) + time(_TIMESTAMP, 0, 7000),
    "narrowed": b"\x18\x80\x80\x80\x80\x80\x01",
    "narrowed_u32": b"\x28\x85\x80\x80\x80\x80\x01",
    "big_bool": b"\x68\x80\x80\x80\x80\x80\x01",
    "wrong_wire": b"\x70\x05",
    "unpacked": b"\xa0\x01\x05\xa0\x01\x06",
    "packed": b"\xe2\x02\x02\x05\x06",
    "empty": b"",
    "unknown_field": field(900, b"\xff"),
}


@pytest.mark.parametrize("name", SUBTLE)
def test_unusual_messages_decode_as_the_runtime_decodes_them(name: str) -> None:
    record = SUBTLE[name]
    assert sorted_repr(in_batch(broad(), [record])) == sorted_repr(one_by_one(broad(), [record]))


def test_values_of_fields() -> None:
    made = class_of(broad())(u64=2**64 - 1, u32=2**32 - 1, c=1, ws={}, oi=0, msc={"a": 5})
    made.ts.FromDatetime(dt.datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=_UTC))
    made.du.FromTimedelta(dt.timedelta(seconds=-1, milliseconds=-500))
    value = broad().decode(made.SerializeToString())
    assert value["u64"] == Decimal(2**64 - 1)
    assert value["u32"] == 2**32 - 1
    assert (value["c"], value["oc"], value["msc"]) == ("GREEN", None, {"a": "BLUE"})
    assert (value["ws"], value["wi"]) == ("", None)
    assert (value["oi"], value["os"], value["i32"], value["s"]) == (0, None, 0, "")
    assert value["ts"] == dt.datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=_UTC)
    assert value["du"] == dt.timedelta(seconds=-1.5)
    assert (value["m"], value["ri"], value["msi"]) == (None, [], {})


def test_proto2_defaults_and_required_fields() -> None:
    codec = codec_of(PROTO2, "p2.M")
    value = codec.decode(b"\x08\x05")
    assert value["id"] == 5
    assert (value["name"], value["ed"], value["by"], value["b"]) == ('anon"y\n', "B", b"\x01a", True)
    assert (value["n"], value["e"], value["g"]) == (None, None, None)
    assert codec.diagnose(b"").message == "the required field 'id' is missing"
    # A number that an enum of proto2 does not have is an unknown field.
    assert codec.decode(b"\x08\x01\x30\x09")["e"] is None
    assert not codec.fields["id"].nullable
    with pytest.raises(EncodeFault, match="the required field 'id' is null"):
        codec.encode({"id": None})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x12\x02\xff\xfe", "'name' is not UTF-8: b'\\xff\\xfe'"),
        (b"\x7a\x01\xff", "'oa' is not UTF-8: b'\\xff'"),
        (b"\x52\x03\x0a\x01\xff", "'inn.q' is not UTF-8: b'\\xff'"),
        (b"\xf2\x01\x05\x0a\x03a\xffb", "'m' is not UTF-8: b'a\\xffb'"),
    ],
)
def test_a_string_of_proto2_must_be_utf8_too(data: bytes, message: str) -> None:
    codec = codec_of(PROTO2.replace("reserved 20 to 25, 30;", "map<string, int32> m = 30;"), "p2.M")
    fault = codec.explain(b"\x08\x05" + data)
    assert (fault.kind, fault.message) == ("not_protobuf", message)
    assert in_batch(codec, [b"\x08\x05" + data, b"\x08\x05"]).to_pylist()[0] is None


def test_deep_nesting_is_a_fault() -> None:
    fault = broad().explain(b"\x0b" * 100_000)
    assert (fault.kind, "nested too deeply" in fault.message) == ("not_protobuf", True)


def test_json_messages_are_text() -> None:
    codec = codec_of(JSONS, "jsons.J")
    value = {
        "st": '{"a":[1,null,{"b":"é"}]}',
        "va": "null",
        "lv": "[1,true]",
        "values": ['"x"'],
        "maps": {"k": "{}"},
        "n": 1,
    }
    data = codec.encode(value)
    assert codec.decode(data) == {
        "st": '{"a":[1.0,null,{"b":"é"}]}',
        "va": "null",
        "lv": "[1.0,true]",
        "any": None,
        "values": ['"x"'],
        "maps": {"k": "{}"},
        "n": 1,
    }
    found = in_batch(codec, [data, b"\xff", None]).to_pylist()
    assert (found[0]["n"], found[1:]) == (1, [None, None])
    with pytest.raises(EncodeFault, match="'st' is not the JSON text of a google"):
        codec.encode({"st": "[1]"})
    for text in ("NaN", "-Infinity", "1e400"):
        with pytest.raises(EncodeFault, match="'va' is not the JSON text of a google"):
            codec.encode({"va": text})


MISFITS = {
    "i32": (2**31, "'i32' is 2147483648, outside -2147483648 to 2147483647"),
    "u32": (-1, "'u32' is -1, outside 0 to 4294967295"),
    "u64": (Decimal(2**64), "'u64' is 18446744073709551616, outside"),
    "c": ("PURPLE", "'c' is 'PURPLE', which is not a name of the enum broad.Color: RED, GREEN, LIME, BLUE, NEG"),
    "ri": ([1, None], "'ri[1]' is null, which Protobuf cannot represent"),
    "msi": ([("a", None)], "\"msi['a']\" is null, which Protobuf cannot represent"),
    "rm": ([None], "'rm[0]' is null"),
    "ts": (dt.datetime(1, 1, 1, tzinfo=_UTC), None),
}


@pytest.mark.parametrize("name", MISFITS)
def test_values_that_do_not_fit(name: str) -> None:
    value, reason = MISFITS[name]
    codec = broad()
    kind = kind_of(codec)
    wide = {"i32": pa.int64(), "u64": pa.decimal128(38, 0)}.get(name, kind.field(name).type)
    good = [{name: None}] * 50
    data, misfits = codec.encode_batch(pa.array([*good, {name: value}, *good], pa.struct([(name, wide)])))
    reasons = [each for each in misfits.to_pylist() if each is not None]
    if reason is None:
        assert reasons == []
    else:
        assert len(reasons) == 1
        assert reason in reasons[0]
        assert data[50].as_py() is None
    assert data[0].as_py() == b""


def test_a_double_that_a_float_would_make_infinite_does_not_fit() -> None:
    with pytest.raises(EncodeFault, match=r"'f' is 1e\+300, outside the range of a float"):
        broad().encode({"f": 1e300})
    assert broad().encode({"f": math.inf}) == b"\x15\x00\x00\x80\x7f"


def test_several_fields_of_a_oneof_do_not_fit() -> None:
    kind = pa.struct([("oa", pa.string()), ("ox", pa.int64())])
    values = pa.array([{"oa": "x", "ox": None}, {"oa": "x", "ox": 1}, None, {"oa": None, "ox": 0}], kind)
    data, misfits = broad().encode_batch(values)
    assert misfits.to_pylist() == [None, "'oa' and 'ox' both have values, but belong to the oneof 'o'", None, None]
    assert data.to_pylist() == [b"\xda\x01\x01x", None, None, b"\xe0\x01\x00"]


def test_null_fields_are_not_written() -> None:
    kind = kind_of(broad())
    data, misfits = broad().encode_batch(pa.array([dict.fromkeys(kind.names)], kind))
    assert (data.to_pylist(), misfits.to_pylist()) == ([b""], [None])
    assert broad().encode(dict.fromkeys(kind.names)) == b""
