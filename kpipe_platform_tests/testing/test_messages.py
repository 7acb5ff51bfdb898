from typing import Any

import pytest

from kpipe_platform.testing.messages import ConsumedRecord, outgoing


@pytest.mark.parametrize(
    ("record", "arguments"),
    [
        (b"v", {"value": b"v"}),
        ("v", {"value": "v"}),
        (None, {"value": None}),
        ((b"k", b"v"), {"key": b"k", "value": b"v"}),
        (("k", None), {"key": "k", "value": None}),
        (("k", {"a": "\u00fc"}), {"key": "k", "value": '{"a":"\u00fc"}'}),
        ({"value": [1, 2]}, {"key": None, "value": "[1,2]", "partition": -1, "timestamp": 0}),
        (
            {"key": "k", "value": "v", "headers": {"h": b"1"}, "timestamp": 5, "partition": 2},
            {"key": "k", "value": "v", "headers": [("h", b"1")], "timestamp": 5, "partition": 2},
        ),
        (
            {"headers": [("h", b"1"), ("h", None)], "timestamp_ms": 7},
            {
                "key": None,
                "value": None,
                "headers": [("h", b"1"), ("h", None)],
                "timestamp": 7,
                "partition": -1,
            },
        ),
    ],
)
def test_outgoing(record: Any, arguments: dict[str, Any]) -> None:
    assert outgoing(record) == arguments


@pytest.mark.parametrize("record", [{"name": "a JSON value"}, 5, [1]])
def test_what_is_no_record(record: Any) -> None:
    with pytest.raises(TypeError, match=r"record"):
        outgoing(record)


def test_last_header_of_a_name_counts() -> None:
    record = ConsumedRecord("t", 0, 0, 0, None, b'{"a":1}', (("h", b"1"), ("g", None), ("h", b"2")))
    assert record.header("h") == b"2"
    assert record.header("g") is None
    assert record.header("absent") is None
    assert record.json() == {"a": 1}
