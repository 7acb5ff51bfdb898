"""The faults of records that do not decode or encode, and their kinds."""

from __future__ import annotations

from kpipe_platform.errors import DecodeFault as DecodeFault
from kpipe_platform.errors import EncodeFault as EncodeFault
from kpipe_platform.errors import KpipeError

EMPTY = "empty"
"""The value is empty, or contains only white space."""
NOT_UTF8 = "not_utf8"
"""The bytes are not UTF-8 text."""
NOT_JSON = "not_json"
"""The text is not a single JSON document."""
NOT_PROTOBUF = "not_protobuf"
"""The bytes are not a Protobuf message of the type."""
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

# Exceptions that a codec raises for another reason than the bytes or the value: they stop the run.
_NOT_OF_DATA = (KpipeError, OSError, MemoryError, NameError, ImportError, NotImplementedError)


def may_be_of_data(error: Exception) -> bool:
    """Whether bytes, or a value, may be the reason for an exception that a codec raised, and kpipe must handle it."""
    return not isinstance(error, _NOT_OF_DATA)
