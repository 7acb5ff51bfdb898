"""Parts of the documentation site that come from elsewhere: commands, settings, and files of the project's root."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

import kpipe_platform
from kpipe_platform.cli.main import app

ROOT = Path(__file__).parents[1]
# Page of the site -> file that it shows.
ROOT_FILES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}

_COMMAND_LIST = re.compile(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+\n")
_SETTINGS = re.compile(r"^<!-- settings: (\w+) -->$", re.MULTILINE)
_COMMANDS = "<!-- the commands of kpipe -->"
# A line that begins as prose does, bold included, before an item of a list.
_LIST_IN_PARAGRAPH = re.compile(r"^(?:\*\*|\w).*\n(?=- )", re.MULTILINE)
_GUARANTEES = "<!-- the table of guarantees in README.md -->"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace names with a star in the navigation by the files that they match."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the root that are pages of the site."""
    for page, name in ROOT_FILES.items():
        text = _for_the_site((ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in tables that the code, or README, already has."""
    if _GUARANTEES in markdown:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        links = _for_the_site(_section(readme, "What is guaranteed, and what is not"))
        # The page is in a subfolder of docs/.
        markdown = markdown.replace(_GUARANTEES, re.sub(r"\]\((?=[a-z])", "](../", links))
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, command_reference())
    markdown = _SETTINGS.sub(lambda found: settings_table(getattr(kpipe_platform, found[1])), markdown)
    # Elsewhere a list may follow a paragraph directly; here it would become a part of it.
    return _LIST_IN_PARAGRAPH.sub(r"\g<0>\n", markdown)


def command_reference() -> str:
    """Every command of `kpipe`, with its arguments and options."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="kpipe"), name="kpipe")
    # The page has its own title and table of contents.
    return _COMMAND_LIST.sub("", text.removeprefix("# `kpipe`\n"))


def settings_table(model: type[BaseModel]) -> str:
    """The fields of a resource or configuration class as a table."""
    annotations = inspect.get_annotations(model)
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if name not in annotations:
            continue
        kind = str(annotations[name])
        default = "required" if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
        lines.append(f"| `{name}` | `{kind}` | {default} | {field.description or ''} |")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel):
        return f"{type(value).__name__}()"
    return repr(getattr(value, "value", value))


def _expanded(nav: Any, folder: Path) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(below, folder) for title, below in nav.items()}
    if not isinstance(nav, list):
        return nav
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            found += sorted(path.relative_to(folder).as_posix() for path in folder.glob(entry))
        else:
            found.append(_expanded(entry, folder))
    return found


def _for_the_site(text: str) -> str:
    """A file of the root with its links as pages at the site's top have them."""
    pages = {name: page for page, name in ROOT_FILES.items()} | {"README.md": "index.md"}
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\]\(([A-Z]+\.md)", lambda found: f"]({pages[found[1]]}", text)


def _section(text: str, heading: str) -> str:
    _, _, rest = text.partition(f"## {heading}\n")
    return rest.partition("\n## ")[0]
