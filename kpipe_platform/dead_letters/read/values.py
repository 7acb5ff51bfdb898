"""Parse numbers and texts in the headers of dead letters of any family."""

from __future__ import annotations

# A 64-bit number is the largest that any family writes.
_MAX_BYTES = 8


def read_number(data: bytes | None, *, binary: bool = True) -> int | None:
    """Parse a number that is text, or binary and big-endian, as Spring writes it.

    Spring writes 4 bytes for a partition or an attempt (a single byte occurs too), 8 bytes for an offset or a
    timestamp, and as many bytes as needed for the timestamp of a retry topic. Digits are always parsed as text: as a
    binary number of that length they would be a partition above 800 million, or an offset above 3 * 10^18.

    Args:
        data: The header's value.
        binary: Whether it may be binary.

    Returns:
        The number. None if the value is not a number, or is negative, which means unknown.
    """
    if not data:
        return None
    text = data.strip()
    if text.isdigit():
        # A 64-bit number has at most 19 digits.
        return int(text) if len(text) <= 19 else None
    if not binary or len(data) > _MAX_BYTES or text[:1] == b"-":
        return None
    number = int.from_bytes(data, "big", signed=True)
    return number if number >= 0 else None


def read_text(data: bytes | None) -> str | None:
    """Decode a header as UTF-8 text. Invalid bytes become backslash escapes."""
    return None if data is None else data.decode("utf-8", "backslashreplace")
