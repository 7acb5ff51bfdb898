"""How many bytes a record takes in Kafka.

Source: KIP-98 (message format v2) and ``DefaultRecord.recordSizeUpperBound`` of the Java client, which counts
the same way. A record is a varint length, one byte of attributes, two varint deltas, then key, value and
headers, each behind its varint length.
"""

from __future__ import annotations

from collections.abc import Sequence

BATCH_OVERHEAD_BYTES = 61
"""Header of the batch that a record travels in; the smallest batch holds one record."""

RECORD_OVERHEAD_BYTES = 21
"""Most that a record takes beside key, value and headers: length 5, attributes 1, timestamp 10, offset 5."""

DEFAULT_MAX_RECORD_BYTES = 1_048_588
"""Largest batch that a topic takes unless ``max.message.bytes`` (broker: ``message.max.bytes``) says more."""


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> int:
    """Upper bound of the bytes that a record takes when it is alone in its batch and not compressed.

    The broker compares a batch with ``max.message.bytes``, so a record whose size is not above that limit is
    never refused for it. The bound is at most 20 bytes above what the record really takes.

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
            size += 2 + name_bytes + content_bytes  # nearly every header; lengths of one byte each
        else:
            size += _varint_size(name_bytes) + name_bytes + _varint_size(content_bytes) + content_bytes
    return size


def compressed_size(
    compression: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """About what a broker counts for the record in a compressed batch of its own.

    librdkafka may compress a few percent worse or better.

    Args:
        compression: ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
        key: Key, or None.
        value: Value, or None.
        headers: Header pairs.
    """
    import pyarrow as pa  # few records need it, and whoever plans a slice does without

    parts = [key, value, *(part for name, content in headers for part in (name.encode("utf-8", "replace"), content))]
    data = b"".join(part for part in parts if part)
    return record_size(None, None, ()) + len(pa.compress(data, codec=compression, asbytes=True))


def _field_size(data: bytes | None) -> int:
    if data is None:
        return 1  # the length -1
    return _varint_size(len(data)) + len(data)


def _varint_size(length: int) -> int:
    # Lengths are zigzag encoded, which doubles them; seven bits go into a byte.
    if length < 64:
        return 1
    return ((length << 1).bit_length() + 6) // 7
