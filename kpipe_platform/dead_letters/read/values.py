"""Numbers and texts in the headers of dead letters, whoever wrote them."""

from __future__ import annotations

# A 64-bit number is the largest that any family writes.
_MAX_BYTES = 8


def read_number(data: bytes | None, *, binary: bool = True) -> int | None:
    """A number that is text, or binary and big-endian, as Spring writes it.

    Spring has 4 bytes for a partition or an attempt (a single byte is seen too), 8 for an offset or a timestamp,
    and as many as it takes for the timestamp of a retry topic. Digits are always text: as a binary number of that
    length they would be a partition above 800 million, or an offset above 3 * 10^18.

    Args:
        data: The header's value.
        binary: Whether it may be binary.

    Returns:
        The number; None where there is none, or where it is negative: those stand for what is not known.
    """
    if not data:
        return None
    text = data.strip()
    if text.isdigit():
        # More digits than a 64-bit number has.
        return int(text) if len(text) <= 19 else None
    if not binary or len(data) > _MAX_BYTES or text[:1] == b"-":
        return None
    number = int.from_bytes(data, "big", signed=True)
    return number if number >= 0 else None


def read_text(data: bytes | None) -> str | None:
    """A header's text; bytes that are not UTF-8 are shown as escapes."""
    return None if data is None else data.decode("utf-8", "backslashreplace")
