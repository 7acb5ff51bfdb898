"""The documentation site, as `make docs` builds it: links lead somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import kpipe_platform

from .pages import ROOT

# Elements that a browser fetches by themselves, unlike a link that somebody follows.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Html(HTMLParser):
    """Anchors, links and fetched addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and (href := given.get("href")):
            self.links.append(href)
        if (address := given.get(FETCHED.get(tag, ""))) is not None:
            self.fetched.append(address)


@cache
def parsed(page: Path) -> Html:
    html = Html()
    html.feed(page.read_text(encoding="utf-8"))
    return html


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-6_000:]
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> list[Path]:
    # The page of a server's error 404 has addresses from the server's root.
    return [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]


def test_links_and_anchors_lead_somewhere(pages: list[Path]) -> None:
    broken = []
    for page in pages:
        for link in [*parsed(page).links, *parsed(page).fetched]:
            parts = urlsplit(link)
            if parts.scheme or link == "#":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target.suffix == ".html" and anchor not in parsed(target).anchors):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: list[Path]) -> None:
    addresses = {address for page in pages for address in parsed(page).fetched}
    for style in site.rglob("*.css"):
        addresses |= set(re.findall(r"""(?:url\(|@import )["']?([^"')]+)""", style.read_text(encoding="utf-8")))
    assert {each for each in addresses if re.match(r"(?:\w+:)?//", each)} == set()


def test_the_pages_that_are_made_from_the_code_have_what_it_has(site: Path) -> None:
    commands = parsed(site / "reference/cli.html").anchors
    assert {"kpipe-dev", "kpipe-dlq-redrive", "kpipe-partitions-pause"} <= commands
    names = {anchor for page in (site / "reference/api").glob("*.html") for anchor in parsed(page).anchors}
    assert {f"kpipe_platform.{each}" for each in kpipe_platform.__all__ if each[0] != "_"} <= names
    settings = (site / "reference/settings.html").read_text(encoding="utf-8")
    assert "<!-- settings" not in settings
    assert "sasl_mechanism" in settings
    guarantees = (site / "explanation/guarantees.html").read_text(encoding="utf-8")
    assert "Exactly once, topic to topic" in guarantees
