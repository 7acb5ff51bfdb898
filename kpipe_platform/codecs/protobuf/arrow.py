"""Convert serialized messages to Arrow arrays in Spark's types and back, with ptars.

ptars reads and writes a copy of the message type that has no imports, in which times and wrappers are plain messages:
kpipe converts them. ptars differs from the Protobuf runtime in some messages, for example if several fields of a oneof
are set, or a key occurs twice in a map. Such a batch raises `ValueError`, and the caller asks the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kpipe_platform.codecs.protobuf import types as P
from kpipe_platform.codecs.protobuf._compat import ArrowMessages, arrow_messages
from kpipe_platform.codecs.protobuf.descriptors import message_type
from kpipe_platform.codecs.protobuf.values import canonical_name

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto

_SECOND_US = 1_000_000


@lru_cache(maxsize=64)
def arrow_converter(descriptors: str, message: str) -> ArrowConverter | None:
    """Return the converter of a message type; None if ptars does not convert it as the Protobuf runtime does."""
    found = message_type(descriptors, message)
    return ArrowConverter(found) if all(_is_supported(each) for each in _within(found)) else None


class ArrowConverter:
    """Converts messages of one type.

    Args:
        message: The type. It and those within it are of proto3, and none contains itself.
    """

    def __init__(self, message: Descriptor) -> None:
        self._message = message
        file, name = _copy(message)
        self._messages: ArrowMessages = arrow_messages(file, name)
        self._schema = self._messages.schema()

    def decode(self, data: pa.Array, kind: pa.StructType) -> pa.StructArray:
        """Decode messages.

        Args:
            data: Serialized messages, none of which is null.
            kind: Spark's type of the message, in Arrow.

        Raises:
            ValueError: A message does not decode, or ptars may differ from the Protobuf runtime in one.
        """
        batch = self._messages.array_to_record_batch(data)
        return _read_message(batch.to_struct_array(), self._message, kind)

    def encode(self, values: pa.StructArray) -> pa.Array:
        """Encode messages.

        Args:
            values: Values in Spark's types. A null is an empty message.

        Raises:
            ValueError: A value does not fit, or ptars may differ from the Protobuf runtime in one.
        """
        columns = _write_fields(values, self._message, pa.struct(list(self._schema)))
        # The columns have nulls for values that are not set, also where ptars does not decode any.
        fields = [pa.field(name, each.type) for name, each in columns.items()]
        if not fields:
            return pa.array([b""] * len(values), pa.binary())
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))
        return self._messages.record_batch_to_array(batch)


# The copy of a message type


def _within(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for each in message.fields:
        if each.message_type is not None:
            yield from (
                _within(each.message_type) if each.message_type.full_name not in P.JSON_TEXT else (each.message_type,)
            )


def _is_supported(message: Descriptor) -> bool:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto.FromString(message.file.serialized_pb)
    enums = (each.enum_type for each in message.fields if each.enum_type is not None)
    return (
        file.syntax == "proto3"
        and message.full_name not in P.JSON_TEXT
        and bool(message.fields)
        and not any(each.is_closed for each in enums)
    )


def _copy(message: Descriptor) -> tuple[bytes, str]:
    """Return a serialized file with copies of the message type and those within it, and the copy's name."""
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name="kpipe.proto", syntax="proto3")
    names: dict[str, str] = {}

    def copied_message(source: Descriptor) -> str:
        if source.full_name not in names:
            names[source.full_name] = name = f"M{len(names)}"
            made = DescriptorProto()
            fill(made, source, name)
            file.message_type.append(made)
        return f".{names[source.full_name]}"

    def copied_enum(source: EnumDescriptor) -> str:
        if source.full_name not in names:
            # Within a message, because its names would be those of the file otherwise.
            names[source.full_name] = name = f"E{len(names)}"
            enum = file.message_type.add(name=name).enum_type.add(name="E")
            for number in dict.fromkeys(each.number for each in source.values):
                enum.value.add(name=canonical_name(source, number), number=number)
        return f".{names[source.full_name]}.E"

    def fill(made: DescriptorProto, source: Descriptor, name: str) -> None:
        source.CopyToProto(made)
        for unused in ("nested_type", "enum_type", "extension", "extension_range", "options", "reserved_range"):
            made.ClearField(unused)
        made.name = name
        for field, each in zip(made.field, source.fields, strict=True):
            if P.is_map(each):
                entry = each.message_type
                fill(made.nested_type.add(), entry, entry.name)
                made.nested_type[-1].options.map_entry = True
                field.type_name = f".{name}.{entry.name}"
            elif each.message_type is not None:
                field.type_name = copied_message(each.message_type)
            elif each.enum_type is not None:
                field.type_name = copied_enum(each.enum_type)

    return_name = copied_message(message)[1:]
    return file.SerializeToString(), return_name


# From ptars' types to Spark's


def _read_message(array: pa.StructArray, message: Descriptor, kind: pa.StructType) -> pa.StructArray:
    columns = {each.name: array.field(each.name) for each in message.fields}
    for members in _oneofs(message):
        _check_one(columns[each.name] for each in members)
    converted = [_read_field(columns[each.name], each, kind.field(each.name).type) for each in message.fields]
    return pa.StructArray.from_arrays(converted, fields=list(kind), mask=array.is_null())


def _read_field(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> pa.Array:
    if P.is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        if array.items.null_count:
            raise ValueError("an entry of a map has no value")
        _check_keys(array)
        keys = _read_single(array.keys, key, kind.key_type)
        return pa.MapArray.from_arrays(array.offsets, keys, _read_single(array.items, value, kind.item_type), type=kind)
    if field.is_repeated:
        return pa.ListArray.from_arrays(array.offsets, _read_single(array.values, field, kind.value_type), type=kind)
    return _read_single(array, field, kind)


def _read_single(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> pa.Array:
    message = field.message_type
    if message is None:
        return array if array.type == kind else array.cast(kind)
    if message.full_name == P.TIMESTAMP:
        return _read_time(array, (P.MIN_SECONDS, P.MAX_SECONDS), 0).cast(kind)
    if message.full_name == P.DURATION:
        return _read_time(array, (-P.MAX_DURATION_S, P.MAX_DURATION_S), -P.MAX_NANOS).cast(kind)
    if message.full_name in P.WRAPPERS:
        return _masked(array.field(0), array).cast(kind)
    return _read_message(array, message, kind)


def _read_time(array: pa.StructArray, seconds_range: tuple[int, int], min_nanos: int) -> pa.Array:
    """Return seconds and nanoseconds as microseconds."""
    seconds, nanos = array.field(0).to_numpy(zero_copy_only=False), array.field(1).to_numpy(zero_copy_only=False)
    _check_range(seconds, seconds_range)
    _check_range(nanos, (min_nanos, P.MAX_NANOS))
    if min_nanos < 0 and (seconds * np.sign(nanos) < 0).any():
        raise ValueError("a duration has seconds and nanoseconds of different signs")
    micros = seconds * _SECOND_US + np.where(nanos < 0, -(-nanos // 1000), nanos // 1000)
    return _masked(pa.array(micros, pa.int64()), array)


def _masked(values: pa.Array, array: pa.Array) -> pa.Array:
    return values if array.null_count == 0 else pc.if_else(array.is_valid(), values, None)


def _check_range(values: Any, allowed: tuple[int, int]) -> None:
    if len(values) and (values.min() < allowed[0] or values.max() > allowed[1]):
        raise ValueError("a time is out of range")


def _check_one(columns: Iterator[pa.Array]) -> None:
    """Check that of the fields of a oneof, no message has several."""
    counts = sum(each.is_valid().to_numpy(zero_copy_only=False).astype(np.int8) for each in columns)
    if np.any(counts > 1):
        raise ValueError("several fields of a oneof have values")


def _check_keys(array: pa.MapArray) -> None:
    lengths = np.diff(array.offsets.to_numpy())
    if len(lengths) == 0 or lengths.max() <= 1:
        return
    rows = pa.array(np.repeat(np.arange(len(lengths)), lengths))
    entries = pa.table({"row": rows, "key": array.keys.slice(array.offsets[0].as_py(), len(rows))})
    if entries.group_by(["row", "key"]).aggregate([]).num_rows != len(rows):
        raise ValueError("a key occurs twice in a map")


def _oneofs(message: Descriptor) -> Iterator[list[FieldDescriptor]]:
    return (list(each.fields) for each in message.oneofs if len(each.fields) > 1)


# From Spark's types to those of ptars


def _write_fields(array: pa.StructArray, message: Descriptor, kind: pa.StructType) -> dict[str, pa.Array]:
    """Return the fields of a struct that it has, in the types of ptars."""
    names = [each.name for each in array.type]
    if unknown := set(names) - {each.name for each in message.fields}:
        raise ValueError(f"the message type has no field {unknown}")
    columns = {name: array.field(name) for name in names}
    for members in _oneofs(message):
        _check_one(columns[each.name] for each in members if each.name in columns)
    return {
        each.name: _write_field(columns[each.name], each, kind.field(each.name).type)
        for each in message.fields
        if each.name in columns
    }


def _write_field(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if not field.is_repeated:
        return _write_single(array, field, kind)
    offsets, start, length = _offsets(array)
    if P.is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        keys = _write_single(_without_nulls(array.keys.slice(start, length)), key, kind.key_type)
        items = _write_single(_without_nulls(array.items.slice(start, length)), value, kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items)
    values = _write_single(_without_nulls(array.values.slice(start, length)), field, kind.value_type)
    return pa.ListArray.from_arrays(offsets, values)


def _offsets(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the offsets of lists from 0 on, and the start and number of their values."""
    offsets = array.offsets.to_numpy()
    if array.null_count and np.diff(offsets)[array.is_null().to_numpy(zero_copy_only=False)].any():
        raise ValueError("a null list has values")
    start = int(offsets[0])
    return pa.array(offsets - start, pa.int32()), start, int(offsets[-1]) - start


def _without_nulls(array: pa.Array) -> pa.Array:
    if array.null_count:
        raise ValueError("an element is null")
    return array


def _write_single(array: pa.Array, field: FieldDescriptor, kind: pa.DataType) -> pa.Array:
    message = field.message_type
    if field.enum_type is not None:
        _check_names(array, field.enum_type)
    if field.type in (P.DOUBLE, P.FLOAT) and not field.has_presence:
        _check_zeros(array)
    if message is None:
        return array if array.type == kind else array.cast(kind)
    if message.full_name == P.TIMESTAMP:
        return _write_time(array.cast(pa.timestamp("us", array.type.tz)), np.floor_divide, P.MIN_SECONDS, P.MAX_SECONDS)
    if message.full_name == P.DURATION:
        return _write_time(array.cast(pa.duration("us")), _truncated, -P.MAX_DURATION_S, P.MAX_DURATION_S)
    if message.full_name in P.WRAPPERS:
        value = _write_single(array, message.fields_by_name["value"], kind.field(0).type)
        return pa.StructArray.from_arrays([value], ["value"], mask=array.is_null())
    columns = _write_fields(array, message, kind)
    fields = [pa.field(name, each.type) for name, each in columns.items()]
    for each in kind:
        if each.name not in columns:
            columns[each.name] = pa.nulls(len(array), each.type)
            fields.append(pa.field(each.name, each.type))
    return pa.StructArray.from_arrays(list(columns.values()), fields=fields, mask=array.is_null())


def _check_names(array: pa.Array, enum: EnumDescriptor) -> None:
    names = {canonical_name(enum, each.number) for each in enum.values}
    known = pc.or_(array.is_null(), pc.is_in(array, pa.array(sorted(names), array.type)))
    if pc.any(pc.invert(known)).as_py():
        raise ValueError("a text is not a name of the enum")


def _check_zeros(array: pa.Array) -> None:
    """Ptars does not write a field that is -0.0."""
    values = pc.fill_null(array, 1).to_numpy(zero_copy_only=False)
    if np.any((values == 0) & np.signbit(values)):
        raise ValueError("a number is -0.0")


def _write_time(array: pa.Array, divide: Callable[[Any, int], Any], low: int, high: int) -> pa.Array:
    micros = pc.fill_null(array.cast(pa.int64()), 0).to_numpy()
    seconds = divide(micros, _SECOND_US)
    _check_range(seconds, (low, high))
    nanos = ((micros - seconds * _SECOND_US) * 1000).astype(np.int32)
    made = [pa.array(seconds, pa.int64()), pa.array(nanos, pa.int32())]
    return pa.StructArray.from_arrays(made, ["seconds", "nanos"], mask=array.is_null())


def _truncated(micros: Any, unit: int) -> Any:
    return np.where(micros < 0, -(-micros // unit), micros // unit)
