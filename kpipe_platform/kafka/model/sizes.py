"""Size of a record in Kafka, in bytes.

Source: KIP-98 (message format v2) and ``DefaultRecord.recordSizeUpperBound`` of the Java client, which counts
the same way. A record is a varint length, one byte of attributes, two varint deltas, then key, value and
headers, each preceded by its varint length.
"""

from __future__ import annotations

from collections.abc import Sequence

BATCH_OVERHEAD_BYTES = 61
"""Size of a record batch header; the smallest batch contains one record."""

RECORD_OVERHEAD_BYTES = 21
"""Maximum overhead of a record besides key, value and headers: length 5, attributes 1, timestamp 10, offset 5."""

DEFAULT_MAX_RECORD_BYTES = 1_048_588
"""Largest batch that a topic accepts by default; ``max.message.bytes`` (broker: ``message.max.bytes``) changes it."""


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> int:
    """Return an upper bound of a record's size when it is alone in its batch and not compressed.

    The broker compares a batch with ``max.message.bytes``, so a record whose size is within that limit is never
    refused for its size. The bound is at most 20 bytes above the actual size.

    Args:
        key: Key, or None.
        value: Value, or None.
        headers: Header pairs.

    Returns:
        Size in bytes.
    """
    size = BATCH_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES + _field_size(key) + _field_size(value)
    size += _varint_size(len(headers))
    for name, content in headers:
        name_bytes = len(name) if name.isascii() else len(name.encode("utf-8", "surrogatepass"))
        content_bytes = 0 if content is None else len(content)
        if name_bytes < 64 and content_bytes < 64:
            size += 2 + name_bytes + content_bytes  # fast path for nearly every header: one-byte lengths
        else:
            size += _varint_size(name_bytes) + name_bytes + _varint_size(content_bytes) + content_bytes
    return size


def compressed_size(
    compression: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Estimate the size of a record that is alone in its compressed batch.

    librdkafka's compression may differ by a few percent.

    Args:
        compression: ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
        key: Key, or None.
        value: Value, or None.
        headers: Header pairs.
    """
    import pyarrow as pa  # imported here because few records need it and planning never does

    parts = [key, value, *(part for name, content in headers for part in (name.encode("utf-8", "replace"), content))]
    data = b"".join(part for part in parts if part)
    return record_size(None, None, ()) + len(pa.compress(data, codec=compression, asbytes=True))


def _field_size(data: bytes | None) -> int:
    if data is None:
        return 1  # the length -1
    return _varint_size(len(data)) + len(data)


def _varint_size(length: int) -> int:
    # Zigzag encoding doubles the length; each byte stores seven bits.
    if length < 64:
        return 1
    return ((length << 1).bit_length() + 6) // 7
