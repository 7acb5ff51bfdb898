from __future__ import annotations

import pytest

from kpipe_platform.kafka.model.sizes import record_size

# 61 bytes of batch header, 21 of the record's own fields; each field of known length has its length before it.
OVERHEAD = 82


@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    [
        (None, None, (), OVERHEAD + 3),
        (b"", b"", (), OVERHEAD + 3),
        (b"k", b"v" * 63, (), OVERHEAD + 2 + 64 + 1),
        (b"k", b"v" * 64, (), OVERHEAD + 2 + 66 + 1),
        (None, b"v" * 8191, (), OVERHEAD + 1 + 8193 + 1),
        (None, b"v" * 8192, (), OVERHEAD + 1 + 8195 + 1),
        (None, None, (("ab", b"xyz"),), OVERHEAD + 3 + 3 + 4),
        (None, None, (("ab", None), ("ab", b"")), OVERHEAD + 3 + 2 * (3 + 1)),
        (None, None, (("é", b"x" * 64),), OVERHEAD + 3 + 3 + 66),
        (None, None, (("n" * 70, b"x"),), OVERHEAD + 3 + 72 + 2),
    ],
)
def test_size(key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], size: int) -> None:
    assert record_size(key, value, headers) == size
