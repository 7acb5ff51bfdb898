"""The pages that are for readers, and what is in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(
    r"(?:^<!-- file: (?P<file>\S+) -->\n)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        language: The word behind the fence.
        text: What is in it.
        file: The file, or ``file#function``, that it quotes; None where it quotes none.
        title: The file that a reader saves it as; None for a block that stands for itself.
    """

    language: str
    text: str
    file: str | None
    title: str | None

    @property
    def is_snippet(self) -> bool:
        """Whether it is Python that runs with the other blocks of its page."""
        return self.language == "python" and self.file is None and self.title is None


def name(page: Path) -> str:
    """A page's path as people know it."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["language"], match["text"], match["file"], match["title"]) for match in found]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def code(page: Path) -> Iterator[str]:
    """Every piece of code: inline spans, and the lines of blocks that are for a shell."""
    yield from _SPAN.findall(prose(page))
    for block in blocks(page):
        if block.language == "sh":
            yield from (line.split("#")[0].strip() for line in block.text.splitlines())


def links(page: Path) -> list[str]:
    """Targets of the links of a page."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings."""
    slugs = set()
    for heading in _HEADING.findall(prose(page)):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        slugs.add(plain.replace(" ", "-"))
    return slugs


def quoted(reference: str) -> str:
    """The text that a quotation must have: a file's, or that of one function in it."""
    path, _, function = reference.partition("#")
    text = (ROOT / path).read_text(encoding="utf-8")
    if not function:
        return text
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]) + "\n"
    msg = f"{path} has no function {function}"
    raise LookupError(msg)
