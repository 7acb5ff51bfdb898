"""Base class of codecs, and the faults of records that do not decode or encode.

A codec converts the bytes of a Kafka key or value to a Python value and back. Spark decodes whole slices with
its own expressions; the codec then explains, record by record, why a record was refused. A codec is small and
can be pickled, and two codecs with the same settings are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from kpipe_platform.errors import DecodeFault as DecodeFault
from kpipe_platform.errors import EncodeFault as EncodeFault

EMPTY = "empty"
"""The value is empty, or contains only white space."""
NOT_UTF8 = "not_utf8"
"""The bytes are not UTF-8 text."""
NOT_JSON = "not_json"
"""The text is not a single JSON document."""
NOT_AN_OBJECT = "not_an_object"
"""The JSON document is not an object, so it has no fields."""
MISSING_FIELD = "missing_field"
"""A required field is absent."""
NULL_FIELD = "null_field"
"""A required field is null."""
WRONG_TYPE = "wrong_type"
"""The value of a field does not fit its type."""
UNREADABLE = "unreadable"
"""Spark refused the record, but the codec cannot find the reason."""
NOT_ENCODABLE = "not_encodable"
"""The codec cannot convert the value to bytes."""


class Codec(ABC):
    """Converts the bytes of a Kafka key or value to a Python value and back.

    A null stays null in both directions, so a tombstone is never confused with an empty value.
    """

    name: ClassVar[str]
    """Short name of the codec in configuration and messages."""

    def decode(self, data: bytes | None) -> Any:
        """Decode bytes.

        Args:
            data: Bytes of a key or a value, or None.

        Returns:
            The value; None for None.

        Raises:
            DecodeFault: The bytes do not decode.
        """
        return None if data is None else self._decode(data)

    def encode(self, value: Any) -> bytes | None:
        """Encode a value.

        Args:
            value: A value of a type that the codec supports, or None.

        Returns:
            The bytes; None for None.

        Raises:
            EncodeFault: The codec cannot encode the value.
        """
        return None if value is None else self._encode(value)

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
        message = f"Spark could not decode these {len(data)} bytes as {self.name}, and kpipe did not find the reason"
        return DecodeFault(message, kind=UNREADABLE)

    @abstractmethod
    def diagnose(self, data: bytes) -> DecodeFault | None:
        """Find out why these bytes cannot be decoded.

        Args:
            data: Bytes of a key or a value.

        Returns:
            The first fault, or None if the bytes decode.
        """

    @abstractmethod
    def _decode(self, data: bytes) -> Any: ...

    @abstractmethod
    def _encode(self, value: Any) -> bytes: ...
