"""Convert messages of the Protobuf runtime to Python values and back."""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from kpipe_platform.codecs.faults import (
    MISSING_FIELD,
    NOT_ENCODABLE,
    NOT_PROTOBUF,
    WRONG_TYPE,
    DecodeFault,
    EncodeFault,
)
from kpipe_platform.codecs.protobuf import types as P
from kpipe_platform.codecs.types import field_path

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.message import Message

OUT_OF_RANGE = "out_of_range"
"""A time of a message is outside the range that Protobuf declares for it."""

_SHOWN_BYTES = 20
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_INTEGERS = {
    **dict.fromkeys((P.INT32, P.SINT32, P.SFIXED32), (-(2**31), 2**31 - 1)),
    **dict.fromkeys((P.INT64, P.SINT64, P.SFIXED64), (-(2**63), 2**63 - 1)),
    **dict.fromkeys((P.UINT32, P.FIXED32), (0, 2**32 - 1)),
    **dict.fromkeys((P.UINT64, P.FIXED64), (0, 2**64 - 1)),
    P.ENUM: (-(2**31), 2**31 - 1),
}


# Messages to values


def read_message(message: Message, path: str = "") -> dict[str, Any]:
    """Return the fields of a message by name.

    Raises:
        DecodeFault: A required field is missing, a time is out of range, or a string is not UTF-8.
    """
    return {
        field.name: _read_field(message, field, field_path(path, field.name)) for field in message.DESCRIPTOR.fields
    }


def _read_field(message: Message, field: FieldDescriptor, path: str) -> Any:
    if P.is_map(field):
        entries = getattr(message, field.name)
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return {_read(key, one, path): _read(value, entries[one], f"{path}[{one!r}]") for one in entries}
    if field.is_repeated:
        return [_read(field, one, f"{path}[{i}]") for i, one in enumerate(getattr(message, field.name))]
    if field.has_presence and not message.HasField(field.name):
        if field.is_required:
            raise DecodeFault(f"the required field {path!r} is missing", kind=MISSING_FIELD, field=path)
        return _read(field, field.default_value, path) if field.has_default_value else None
    return _read(field, getattr(message, field.name), path)


def _read(field: FieldDescriptor, value: Any, path: str) -> Any:
    if field.message_type is not None:
        return _read_single(field.message_type, value, path)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else canonical_name(field.enum_type, value)
    if field.type == P.STRING and isinstance(value, bytes):
        # Only proto3 checks that a string is UTF-8. The runtime returns other bytes as they are.
        raise DecodeFault(f"{path!r} is not UTF-8: {value[:_SHOWN_BYTES]!r}", kind=NOT_PROTOBUF, field=path)
    return Decimal(value) if field.type in (P.UINT64, P.FIXED64) else value


def _read_single(kind: Descriptor, value: Any, path: str) -> Any:
    if kind.full_name == P.TIMESTAMP:
        if not (P.MIN_SECONDS <= value.seconds <= P.MAX_SECONDS and 0 <= value.nanos <= P.MAX_NANOS):
            raise _out_of_range(path, kind, value)
        return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if kind.full_name == P.DURATION:
        signs_differ = value.seconds * value.nanos < 0
        if signs_differ or abs(value.seconds) > P.MAX_DURATION_S or abs(value.nanos) > P.MAX_NANOS:
            raise _out_of_range(path, kind, value)
        return dt.timedelta(seconds=value.seconds, microseconds=int(value.nanos / 1000))
    if kind.full_name in P.WRAPPERS:
        return _read(kind.fields_by_name["value"], value.value, path)
    if kind.full_name in P.JSON_TEXT:
        return _json_text(value, path)
    return read_message(value, path)


def _json_text(value: Message, path: str) -> str:
    from google.protobuf import json_format

    try:
        found = json_format.MessageToDict(value)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (json_format.Error, ValueError, RecursionError) as error:
        msg = f"{path!r} has no JSON form: {error}"
        raise DecodeFault(msg, kind=WRONG_TYPE, field=path) from None


def canonical_name(enum: EnumDescriptor, number: int) -> str:
    """Return the name of a number of an enum: the first one, if there are aliases."""
    return str(next(each.name for each in enum.values if each.number == number))


def _out_of_range(path: str, kind: Descriptor, value: Any) -> DecodeFault:
    msg = f"{path!r} is not a valid {kind.name}: {value.seconds} seconds and {value.nanos} nanoseconds"
    return DecodeFault(msg, kind=OUT_OF_RANGE, field=path)


# Values to messages


def write_message(message: Message, values: Any, path: str = "") -> None:
    """Set the fields of a message. A null leaves a field unset.

    Raises:
        EncodeFault: A value does not fit its field, there is no such field, or several fields of a oneof have values.
    """
    if not isinstance(values, Mapping):
        raise _unfit(path or "the value", values, f"a struct of {message.DESCRIPTOR.full_name}")
    fields = message.DESCRIPTOR.fields_by_name
    taken: dict[str, str] = {}
    for name, value in values.items():
        field = fields.get(name)
        if field is None:
            msg = f"the message type {message.DESCRIPTOR.full_name} has no field {name!r}"
            raise EncodeFault(msg, kind=NOT_ENCODABLE, field=path or None)
        if value is None:
            continue
        where, oneof = field_path(path, field.name), field.containing_oneof
        if oneof is not None and taken.setdefault(oneof.name, where) != where:
            msg = f"{taken[oneof.name]!r} and {where!r} both have values, but belong to the oneof {oneof.name!r}"
            raise EncodeFault(msg, kind=NOT_ENCODABLE, field=where)
        _write_field(message, field, value, where)
    missing = [
        field_path(path, each.name)
        for each in message.DESCRIPTOR.fields
        if each.is_required and not message.HasField(each.name)
    ]
    if missing:
        raise EncodeFault(f"the required field {missing[0]!r} is null", kind=NOT_ENCODABLE, field=missing[0])


def _write_field(message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
    if P.is_map(field):
        _write_map(message, field, value, path)
    elif field.is_repeated:
        if not isinstance(value, list | tuple):
            raise _unfit(path, value, "an array")
        target = getattr(message, field.name)
        for i, one in enumerate(value):
            where = f"{path}[{i}]"
            if one is None:
                raise EncodeFault(f"{where!r} is null, which Protobuf cannot represent", kind=NOT_ENCODABLE, field=path)
            if field.message_type is None:
                target.append(_scalar(field, one, where))
            else:
                _write_single(target.add(), one, where)
    elif field.message_type is not None:
        target = getattr(message, field.name)
        target.SetInParent()
        _write_single(target, value, path)
    else:
        setattr(message, field.name, _scalar(field, value, path))


def _write_map(message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
    pairs = list(value.items() if isinstance(value, Mapping) else value) if _is_pairs(value) else None
    if pairs is None:
        raise _unfit(path, value, "a map")
    key, item = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    target = getattr(message, field.name)
    for one, content in pairs:
        where = f"{path}[{one!r}]"
        if content is None:
            raise EncodeFault(f"{where!r} is null, which Protobuf cannot represent", kind=NOT_ENCODABLE, field=path)
        if item.message_type is None:
            target[_scalar(key, one, where)] = _scalar(item, content, where)
        else:
            _write_single(target[_scalar(key, one, where)], content, where)


def _is_pairs(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and all(isinstance(each, list | tuple) and len(each) == 2 for each in value)
    )


def _write_single(message: Any, value: Any, path: str) -> None:
    name = message.DESCRIPTOR.full_name
    if name == P.TIMESTAMP:
        message.seconds, message.nanos = _timestamp(value, path)
    elif name == P.DURATION:
        message.seconds, message.nanos = _duration(value, path)
    elif name in P.WRAPPERS:
        message.value = _scalar(message.DESCRIPTOR.fields_by_name["value"], value, path)
    elif name in P.JSON_TEXT:
        _parse_json(message, value, path)
    else:
        write_message(message, value, path)


def _timestamp(value: Any, path: str) -> tuple[int, int]:
    if not isinstance(value, dt.datetime) or value != value:
        raise _unfit(path, value, "a timestamp")
    since = (value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)) - _EPOCH
    # Days and seconds of a time delta: its microseconds are never negative. pandas has nanoseconds.
    seconds = since.days * 86_400 + since.seconds
    if not P.MIN_SECONDS <= seconds <= P.MAX_SECONDS:
        msg = f"{path!r} is {value}, outside the years 1 to 9999 of a Protobuf timestamp"
        raise EncodeFault(msg, kind=NOT_ENCODABLE, field=path)
    return seconds, since.microseconds * 1000 + getattr(since, "nanoseconds", 0)


def _duration(value: Any, path: str) -> tuple[int, int]:
    if not isinstance(value, dt.timedelta):
        raise _unfit(path, value, "an interval")
    micros = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    seconds, rest = divmod(abs(micros), 1_000_000)
    if seconds > P.MAX_DURATION_S:
        msg = f"{path!r} is {value}, longer than the 10,000 years of a Protobuf duration"
        raise EncodeFault(msg, kind=NOT_ENCODABLE, field=path)
    sign = -1 if micros < 0 else 1
    return sign * seconds, sign * rest * 1000


def _parse_json(message: Any, value: Any, path: str) -> None:
    from google.protobuf import json_format

    try:
        json_format.Parse(value, message)
        json_format.MessageToDict(message)  # infinite numbers and NaN can be parsed, but not read as JSON again
    except (json_format.Error, TypeError, AttributeError, ValueError, RecursionError) as error:
        msg = f"{path!r} is not the JSON text of a {message.DESCRIPTOR.full_name}: {error}"
        raise EncodeFault(msg, kind=NOT_ENCODABLE, field=path) from None


def _scalar(field: FieldDescriptor, value: Any, path: str) -> Any:
    if field.enum_type is not None:
        return _enum_number(field.enum_type, value, path)
    if field.type in _INTEGERS:
        return _integer(field, value, path)
    if field.type in (P.DOUBLE, P.FLOAT):
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise _unfit(path, value, "a number")
        return _float(value, path) if field.type == P.FLOAT else float(value)
    if field.type == P.BOOL:
        if not isinstance(value, bool):
            raise _unfit(path, value, "a boolean")
        return value
    return _text(value, path) if field.type == P.STRING else _bytes(value, path)


def _float(value: Any, path: str) -> float:
    try:
        struct.pack("<f", value)
    except OverflowError:
        msg = f"{path!r} is {value}, outside the range of a float"
        raise EncodeFault(msg, kind=NOT_ENCODABLE, field=path) from None
    return float(value)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _unfit(path, value, "a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        msg = f"{path!r} has a lone surrogate, which UTF-8 cannot encode"
        raise EncodeFault(msg, kind=NOT_ENCODABLE, field=path) from None
    return value


def _bytes(value: Any, path: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _unfit(path, value, "binary")
    return bytes(value)


def _integer(field: FieldDescriptor, value: Any, path: str) -> int:
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unfit(path, value, "an integer")
    low, high = _INTEGERS[field.type]
    if not low <= value <= high:
        msg = f"{path!r} is {value}, outside {low} to {high}"
        raise EncodeFault(msg, kind=NOT_ENCODABLE, field=path)
    return value


def _enum_number(enum: EnumDescriptor, value: Any, path: str) -> int:
    number = value
    if isinstance(value, str):
        if value in enum.values_by_name:
            return int(enum.values_by_name[value].number)
        # The text of a number that the enum does not know, as it was read.
        number = int(value) if value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 11 else None
    if isinstance(number, int) and not isinstance(number, bool):
        low, high = _INTEGERS[P.ENUM]
        if number in enum.values_by_number or (not enum.is_closed and low <= number <= high):
            return number
    names = ", ".join(each.name for each in enum.values[:10])
    msg = f"{path!r} is {value!r}, which is not a name of the enum {enum.full_name}: {names}"
    raise EncodeFault(msg[:500], kind=NOT_ENCODABLE, field=path)


def _unfit(path: str, value: Any, wanted: str) -> EncodeFault:
    shown = type(value).__name__
    return EncodeFault(f"{path!r} is {shown}, not {wanted}", kind=NOT_ENCODABLE, field=path)
