"""What the UI makes of a report's Markdown: nothing of what a record holds is taken for markup."""

from __future__ import annotations

import json
import re

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kpipe_platform.io_managers.metadata import markdown_table, preview
from kpipe_platform.spark.sink.spec import PreviewRow

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
MARKUP = st.text(st.sampled_from("![]()<>&;#`*_~|\\\r\n\t :/-=+.axé") | st.characters(exclude_categories=["Cs"]))


def cells(markdown: str) -> list[list[Token]]:
    """The parts of each cell; fails where there is more than one table."""
    tokens = MARKDOWN.parse(markdown)
    assert [token.type for token in tokens if token.level == 0] == ["table_open", "table_close"]
    return [token.children or [] for token in tokens if token.type == "inline"]


def shown(text: str) -> str:
    return re.sub(r"\s", " ", text).replace("\0", "\ufffd").strip()


@given(st.lists(MARKUP.filter(lambda text: len(text) <= 120), min_size=1, max_size=4))
@example(["![x](https://evil.example/pixel)", "<img src=x>", "a|b\\\\|c\\", "&#33;[x](y)", "\r\n\r\n![x](y)"])
def test_a_cell_shows_its_text_and_nothing_else(values: list[str]) -> None:
    found = cells(markdown_table(["head"] * len(values), [values]))[len(values) :]
    for parts, value in zip(found, values, strict=True):
        assert {part.type for part in parts} <= {"text", "text_special"}
        assert "".join(part.content for part in parts) == shown(value)


def test_a_preview_escapes_names_values_and_keys() -> None:
    image = "![x](https://evil.example/pixel)"
    for value in (json.dumps({image: image, "nested": [image]}), image):
        parts = [part for cell in cells(preview([PreviewRow(image, value)])) for part in cell]
        assert not {part.type for part in parts} & {"image", "link_open", "html_inline"}
        assert any(part.content.startswith("![x]") or part.content == "[" for part in parts)


def test_a_preview_stays_readable() -> None:
    table = preview([PreviewRow(None, json.dumps({"order_id": 1, "note": "a*b"}))])
    assert table.splitlines()[2:] == ["| *key* | *null* |", "| order_id | 1 |", "| note | a\\*b |"]
