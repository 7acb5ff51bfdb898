"""Base class of codecs.

A codec converts the bytes of a Kafka key or value to columns and back. For that it needs `Codec.value_type`,
`Codec._decode` and `Codec._encode`, which convert one record. To be faster, it can convert Arrow batches
(`Codec.decode_batch`, `Codec.encode_batch`) or be a Spark expression (`Codec.parse`, `Codec.value`, `Codec.fault`,
`Codec.write`). The writer asks `Codec.explain`, record by record, why a record was refused. A codec is a small frozen
dataclass of a module: it can be pickled, and two codecs with the same settings are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kpipe_platform.codecs.faults import NOT_ENCODABLE, NULL_FIELD, UNREADABLE, DecodeFault, EncodeFault, may_be_of_data
from kpipe_platform.policies.faults import qualified_name
from kpipe_platform.registry.wire import KEY_HEADER, VALUE_HEADER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql import types as T

    from kpipe_platform.registry.client import RegistryClient

Part = Literal["key", "value"]
"""Part of a record that a codec decodes or encodes."""


@dataclass(frozen=True)
class TableChanges:
    """How values change a table that is read from a topic.

    Attributes:
        removes: Condition, true if the value leaves its key without a row, as a tombstone does.
        clears: Condition, true if the value removes all earlier rows.
        at_ms: Time of the change, milliseconds since 1970 (BIGINT); null if unknown.
    """

    removes: Column
    clears: Column
    at_ms: Column


def any_of(conditions: Iterable[Column]) -> Column:
    """Return a condition that is true if one of several is; false without conditions.

    It is a balanced tree, because a chain of a thousand conditions overflows the stack of Spark's analyzer.
    """
    from pyspark.sql import functions as F

    found = list(conditions) or [F.lit(False)]
    while len(found) > 1:
        found = [reduce(or_, found[start : start + 2]) for start in range(0, len(found), 2)]
    return found[0]


class Codec(ABC):
    """Converts the bytes of a Kafka key or value to a value and back.

    A null stays null in both directions, so a tombstone is never confused with an empty value.
    """

    name: ClassVar[str]
    """Short name of the codec in configuration and messages."""

    # The columns

    @property
    @abstractmethod
    def value_type(self) -> T.DataType:
        """Spark type of a decoded value. Each field of a struct becomes a column; another type the column ``value``."""

    @property
    def is_struct(self) -> bool:
        """Whether a value has fields, each of which is a column. Otherwise the value is one column, ``value``."""
        return type(self.value_type).__name__ == "StructType"

    @property
    def fields(self) -> T.StructType:
        """The declared fields. ``nullable=False`` marks a required field. Empty if the value has no fields."""
        from pyspark.sql.types import StructType

        kind = self.value_type
        return kind if isinstance(kind, StructType) else StructType()

    @property
    def is_expression(self) -> bool:
        """Whether Spark decodes with the expression of `parse`, and not with `decode_batch`."""
        return type(self).parse is not Codec.parse

    @property
    def has_schema(self) -> bool:
        """Whether the codec knows the columns of a value, which is required to read a topic."""
        return True

    # The schema registry

    @property
    def is_framed(self) -> bool:
        """Whether the id of its schema is in front of each value, in Confluent's wire format."""
        return False

    def id_header(self, part: Part) -> str | None:
        """Name of a record header that may have the id of the record's schema; None if the codec does not use one.

        If a record has this header, the header's value is put in front of the bytes to decode. By default, a codec that
        `is_framed` uses Confluent's header.
        """
        return {"key": KEY_HEADER, "value": VALUE_HEADER}[part] if self.is_framed else None

    def resolved(
        self, registry: RegistryClient | None, topic: str, part: Part, ids: Collection[bytes] | None = None
    ) -> Codec:
        """Return the codec to read a slice with, which needs no registry. By default, this codec.

        kpipe calls it for each slice on the driver, because executors do not use the registry. For a record with a
        schema id that the result does not know, the result's `explain` raises ``UnknownSchemaIdError``. Then kpipe
        calls this method again with all ids of the slice.

        Args:
            registry: The registry of the topic's cluster; None if the connection has none.
            topic: The topic.
            part: Whether the codec decodes keys or values.
            ids: The bytes in front of the data of each record of the slice, without repetition; None if they are not
                known.

        Raises:
            ConfigError: The codec needs a registry, and there is none.
            KpipeError: The registry cannot be asked.
        """
        return self

    def resolved_to_write(
        self, registry: RegistryClient | None, topic: str, part: Part, kind: T.DataType | None
    ) -> Codec:
        """Return the codec to write with, which needs no registry. By default, this codec.

        kpipe calls it before a run takes its first slice, to find a wrong schema before any work starts, and for each
        slice, before it is written.

        Args:
            registry: The registry of the topic's cluster; None if the connection has none.
            topic: The topic.
            part: Whether the codec encodes keys or values.
            kind: A struct of the columns that make up the value, or the type of the key column; None before the first
                slice, when it is not known.

        Raises:
            ConfigError: The codec needs a registry, and there is none; or it cannot encode this type.
            IncompatibleSchemaError: The registry refuses the schema.
            KpipeError: The registry cannot be asked.
        """
        return self

    def framed(self, data: bytes | None, headers: Iterable[tuple[str, bytes | None]], part: Part) -> bytes | None:
        """Return the bytes to decode: those of the record, after the value of its `id_header` if it has that header."""
        header = self.id_header(part)
        if header is None or data is None:
            return data
        frames = [value for name, value in headers if name == header and value is not None]
        return frames[-1] + data if frames else data

    # One record in Python

    def decode(self, data: bytes | None) -> Any:
        """Decode bytes.

        Args:
            data: Bytes of a key or a value, or None.

        Returns:
            The value; None for None only. A struct is a dict.

        Raises:
            DecodeFault: The bytes do not decode. Its kind is `UNREADABLE` if ``_decode`` returned None or raised
                another exception that bytes can cause.
        """
        if data is None:
            return None
        try:
            value = self._decode(data)
        except Exception as error:
            if not may_be_of_data(error):
                raise
            message = f"{type(self).__name__} raised {qualified_name(type(error))} for these {len(data)} bytes: {error}"
            raise DecodeFault(message, kind=UNREADABLE) from error
        if value is None:
            raise DecodeFault(f"{type(self).__name__} decoded these {len(data)} bytes to None", kind=UNREADABLE)
        return value

    def encode(self, value: Any) -> bytes | None:
        """Encode a value.

        Args:
            value: A value of a type that the codec supports, or None.

        Returns:
            The bytes; None for None only.

        Raises:
            EncodeFault: The codec cannot encode the value. Also if ``_encode`` raised another exception that a value
                can cause, or did not return bytes.
        """
        if value is None:
            return None
        try:
            data: Any = self._encode(value)
        except Exception as error:
            if not may_be_of_data(error):
                raise
            message = f"{type(self).__name__} raised {qualified_name(type(error))} for this value: {error}"
            raise EncodeFault(message, kind=NOT_ENCODABLE) from error
        if isinstance(data, bytes | bytearray | memoryview):
            return bytes(data)
        # None would be written as a tombstone.
        message = f"{type(self).__name__} encoded this value to {type(data).__name__}, not bytes"
        raise EncodeFault(message, kind=NOT_ENCODABLE)

    def explain(self, data: bytes) -> DecodeFault:
        """Explain why the engine refused these bytes. Unlike `diagnose`, never returns None.

        Args:
            data: Bytes of a key or a value.

        Returns:
            The fault that `diagnose` finds, or a fault of kind `UNREADABLE`.
        """
        fault = self.diagnose(data)
        if fault is not None:
            return fault
        if not self.is_expression:
            from kpipe_platform.codecs.batches import missing_in

            value = self.decode(data)
            missing = missing_in(value, self.value_type)
            if missing is not None:
                return DecodeFault(f'field "{missing}" is required but null', kind=NULL_FIELD, field=missing)
            kind = self.value_type.simpleString()
            message = (
                f"{type(self).__name__} decodes these {len(data)} bytes to {value!r:.200}, which {kind} cannot hold"
            )
        else:
            message = f"Spark could not decode these {len(data)} bytes as {self.name}; kpipe did not find the reason"
        return DecodeFault(message, kind=UNREADABLE)

    def diagnose(self, data: bytes) -> DecodeFault | None:
        """Find out why these bytes cannot be decoded.

        Args:
            data: Bytes of a key or a value.

        Returns:
            The first fault, or None if the bytes decode.
        """
        try:
            self.decode(data)
        except DecodeFault as fault:
            return fault.with_traceback(None)
        return None

    @abstractmethod
    def _decode(self, data: bytes) -> Any: ...

    @abstractmethod
    def _encode(self, value: Any) -> bytes: ...

    # Arrow batches

    def decode_batch(self, data: pa.Array, kind: pa.DataType) -> pa.Array:
        """Decode a batch. By default, decodes one record after the other.

        If it raises an exception that bytes can cause, kpipe decodes the batch one record after the other. So it need
        not find out which bytes do not decode.

        Args:
            data: Binary values. Null for a record without a value.
            kind: Arrow's form of `value_type`.

        Returns:
            The values, of type ``kind``, as many as ``data``. Null where ``data`` is null or does not decode.
        """
        from kpipe_platform.codecs.batches import decode_each

        return decode_each(self.decode, data, kind, self.value_type)

    def encode_batch(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Encode a batch. By default, encodes one value after the other, as after an exception that a value can cause.

        Args:
            values: The values; structs if the codec `is_struct`.

        Returns:
            The bytes (binary), and why a value cannot be encoded (string, null for a value that can be).
        """
        from kpipe_platform.codecs.batches import encode_each

        return encode_each(self.encode, values)

    # Spark expressions

    def parse(self, data: Column) -> Column | None:
        """Parse bytes in one expression. It is evaluated once, and `value` and `fault` get its result.

        The expression must not raise an error for any bytes: use ``try_cast``, ``try_url_decode`` and the like. An
        error fails the whole slice, because Spark does not say which record caused it.

        None: Spark calls `decode_batch`. The default.
        """
        return None

    def value(self, parsed: Column) -> Column:
        """The decoded value, of type `value_type`, from the result of `parse`. By default, that result."""
        return parsed

    def fault(self, data: Column, parsed: Column) -> Column | None:
        """A condition that is true if ``data`` is not null and does not decode; None if all bytes decode."""
        return data.isNotNull() & parsed.isNull()

    def write(self, value: Column, kind: T.DataType) -> Column | None:
        """Encode a column as bytes in one expression.

        None: Spark calls `encode_batch`. The default.

        Args:
            value: The value: a struct if the codec `is_struct`, else the output's column ``value``.
            kind: Its type.

        Raises:
            ConfigError: The codec does not encode this type.
        """
        return None

    def table_changes(self, value: Column) -> TableChanges | None:
        """How a decoded value changes a table; None if each value is the row of its key. The default."""
        return None

    def misfit(self, value: Column, kind: T.DataType) -> Column | None:
        """Why ``write`` cannot encode a value (string, null if it can); None if it can encode every value.

        By default, a value for which ``write`` is null, which would be written as a tombstone. Null in a required
        field, and text that is longer than its VARCHAR, are checked without this method.

        Args:
            value: As in `write`.
            kind: As in `write`.
        """
        from pyspark.sql import functions as F

        written = self.write(value, kind)
        if written is None:
            return None
        return F.when(value.isNotNull() & written.isNull(), F.lit(f"{type(self).__name__} encoded this value to null"))
