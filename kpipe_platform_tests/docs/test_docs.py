"""What the pages say is so: code runs, quotations are exact, links and commands lead somewhere, tables are complete."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pytest
import typer.main
from typer.testing import CliRunner

import kpipe_platform
from kpipe_platform import errors
from kpipe_platform.cli.connection import _VARIABLES
from kpipe_platform.cli.main import app
from kpipe_platform.dead_letters import decode_envelope, encode_envelope, envelope_schema
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata
from kpipe_platform.testing import plugin

from .pages import PAGES, ROOT, anchors, blocks, code, links, name, prose, quoted

GUIDES = ROOT / "docs/guides"
WITH_PYTHON = [page for page in PAGES if any(b.is_snippet for b in blocks(page))]
QUOTATIONS = [(page, block) for page in PAGES for block in blocks(page) if block.file is not None]

COMMAND = re.compile(r"(?:^|/)kpipe ((?:[a-z]+)(?: .*)?)$")
# In the package's own messages a command stands in a sentence.
COMMAND_IN_TEXT = re.compile(r"\bkpipe ((?:broker|dlq|offsets|spark|topics|transactions) [a-z]+)")
CLI = typer.main.get_command(app)


def leaves(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    commands = getattr(command, "commands", None)
    if commands is None:
        return [path]
    return [leaf for word, sub in commands.items() for leaf in leaves(sub, (*path, word))]


# ----------------------------------------------------------------------------------------------- code


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_python_runs_from_the_top_of_a_page_to_its_end(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # Dagster looks for the module of what it decorates.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(page)):
        if block.is_snippet:
            exec(compile(block.text, f"{name(page)}, block {number}", "exec"), namespace)


@pytest.mark.parametrize(
    ("page", "block"), QUOTATIONS, ids=lambda value: name(value) if isinstance(value, Path) else ""
)
def test_quotations_are_exact(page: Path, block: Any) -> None:
    assert block.text == quoted(block.file), f"{name(page)} quotes {block.file} otherwise"


def test_the_readme_quotes_a_whole_asset_and_its_test() -> None:
    files = [block.file for page, block in QUOTATIONS if page.name == "README.md"]
    assert "examples/orders/assets.py" in files
    assert any(file.startswith("examples/orders/test_orders.py#") for file in files)


def test_the_documented_test_of_an_asset_has_less_than_ten_lines() -> None:
    (quotation,) = {block.file for _, block in QUOTATIONS if "#" in block.file}
    assert len(quoted(quotation).splitlines()) < 10


def test_the_examples_definitions_load() -> None:
    from examples.orders.definitions import defs

    dg.Definitions.validate_loadable(defs)


# ---------------------------------------------------------------------------------- links and commands


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}"
        assert target.is_relative_to(ROOT), f"{name(page)} links out of the project: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {link}; there are {sorted(anchors(target))}"


def test_every_page_is_reached_from_the_readme_or_the_navigation_of_the_site() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md", *in_navigation()]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if ":" not in link]
        waiting += [target for target in targets if target.suffix == ".md" and target.exists()]
    assert [name(page) for page in PAGES if page not in seen] == []


def in_navigation() -> list[Path]:
    """Pages of docs/ that the site's navigation names, one by one or by a pattern."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    return [page for name in re.findall(r"[\w*/-]+\.md", text) for page in (ROOT / "docs").glob(name)]


def mentioned() -> dict[str, str]:
    """Every command line of kpipe in the pages, and where."""
    return {match[1]: name(page) for page in PAGES for text in code(page) if (match := COMMAND.search(text))}


def test_mentioned_commands_and_their_options_exist_and_every_command_is_mentioned() -> None:
    documented = set()
    for line, page in mentioned().items():
        command, path, rest = resolve(line.split())
        documented.add(" ".join(path))
        options = {text for parameter in command.params for text in parameter.opts}
        unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in options]
        assert unknown == [], f"{page}: kpipe {line}"
    assert documented >= {" ".join(path) for path in leaves(CLI, ())}


@pytest.mark.parametrize("path", leaves(CLI, ()), ids=" ".join)
def test_every_command_has_a_help(path: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, [*path, "--help"]).exit_code == 0


def test_commands_in_the_packages_own_messages_exist() -> None:
    for path in sorted((ROOT / "kpipe_platform").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for line in COMMAND_IN_TEXT.findall(node.value):
                    assert resolve(line.split()), f"{name(path)}: kpipe {line}"


def resolve(words: list[str]) -> tuple[Any, list[str], list[str]]:
    """The command that the first words name, those words, and the rest."""
    command: Any = CLI
    for number, word in enumerate(words):
        commands = getattr(command, "commands", None)
        if commands is None:
            return command, words[:number], words[number:]
        assert word in commands, f"there is no command kpipe {' '.join(words)}"
        command = commands[word]
    return command, words, []


# ---------------------------------------------------------------------------------------------- tables


def test_every_error_is_explained() -> None:
    classes = {
        each for each, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, errors.KpipeError)
    }
    sections = re.split(r"^### `(\w+)`$", prose(ROOT / "docs/troubleshooting.md"), flags=re.MULTILINE)
    explained = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert set(explained) == classes - {"KpipeError", "TerminalError", "TransientError", "_CodecFault"}
    assert [each for each, text in explained.items() if "**Meaning:**" not in text or "**Fix:**" not in text] == []


def test_every_public_name_is_in_a_guide_and_once_in_the_api_reference() -> None:
    names = sorted(each for each in kpipe_platform.__all__ if each[0] != "_")
    reference = [page for page in PAGES if page.parent.name == "api"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in reference)
    assert sorted(re.findall(r"^::: kpipe_platform\.(\w+)$", text, re.MULTILINE)) == names
    others = [page for page in PAGES if page not in reference and page.name != "CHANGELOG.md"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in others)
    assert [each for each in names if not re.search(rf"\b{each}\b", text)] == []


def test_the_first_figures_of_the_benchmarks_are_those_that_were_measured() -> None:
    text = (ROOT / "docs/reference/benchmarks.md").read_text(encoding="utf-8")
    first, _, measured = text.partition("## Figures")
    rows = re.findall(r"^\| .+ \| (.*) \| (.*) \| (.*) \| `(\w+)` \|$", first.partition("## ")[0], re.MULTILINE)
    assert len(rows) == 5
    for ours, theirs, times, figure in rows:
        ratio = re.search(rf"^\| `{figure}` \| \S+ \| (\S+) \| \S+ \| \w+ \|$", measured, re.MULTILINE)
        assert times == (ratio[1] if ratio else "-")
        rates = [*re.findall(r"([\d,]+) records/s", f"{ours} {theirs}"), *re.findall(r"(0\.\d{3}) s", ours)]
        assert [rate for rate in rates if f"| {rate} |" not in measured] == []


def test_every_fixture_and_setting_of_the_plugin_is_explained() -> None:
    text = prose(GUIDES / "testing.md")
    source = inspect.getsource(plugin)
    fixtures = re.findall(r"@pytest\.fixture.*\ndef (\w+)", source)
    settings = re.findall(r'parser\.addini\(\s*"(\w+)"', source)
    assert fixtures
    assert settings
    assert [each for each in (*fixtures, *settings) if f"| `{each}` |" not in text] == []


def test_the_commit_metadata_is_what_is_written() -> None:
    (block,) = [b for b in blocks(ROOT / "docs/explanation/slices.md") if b.language == "json"]
    read = CommitMetadata.from_text(block.text)
    assert read is not None
    assert json.loads(read.to_text()) == json.loads(block.text)


def test_the_envelope_fits_its_schema_and_reads_back() -> None:
    (block,) = [b for b in blocks(GUIDES / "dead-letters.md") if b.language == "json"]
    jsonschema.validate(json.loads(block.text), envelope_schema())
    envelope = decode_envelope(block.text.encode())
    assert json.loads(encode_envelope(envelope)) == json.loads(block.text)


def test_both_dialects_of_the_connection_are_as_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = tmp_path / "file.pem"
    pem.write_text("-----BEGIN-----", encoding="ascii")
    monkeypatch.setattr("kpipe_platform.kafka.client.sasl.has_feature", lambda feature: True)
    mechanisms = [
        ("PLAIN", {"sasl_username": "user", "sasl_password": "hush"}),
        (
            "OAUTHBEARER",
            {
                **{"oauth_token_url": "https://login/token", "oauth_client_id": "me", "oauth_client_secret": "hush"},
                **{"oauth_scope": "kafka", "oauth_extensions": {"pool": "p"}, "oauth_ca_pem": str(pem)},
            },
        ),
        ("AWS_MSK_IAM", {"aws_region": "eu-west-1"}),
        ("GSSAPI", {"kerberos_keytab": str(pem), "kerberos_principal": "me"}),
    ]
    connections = [
        ConnectionSettings(
            "broker:9093",
            security_protocol="SASL_SSL",
            sasl_mechanism=mechanism,
            ssl_ca_pem=str(pem),
            ssl_certificate_pem=str(pem),
            ssl_key_pem=str(pem),
            ssl_key_password="hush",
            ssl_verify_hostname=False,
            **given,
        )
        for mechanism, given in mechanisms
    ]
    text = prose(GUIDES / "connection.md")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    table = {re.sub(r"\W.*", "", row[0][1:]): row[1:3] for row in rows if len(row) == 4}
    assert set(table) == set(ConnectionSettings.__dataclass_fields__)
    documented: list[set[str]] = []
    librdkafka = {name for settings in connections for name in settings.for_librdkafka()}
    java = {name for settings in connections for name in settings.for_java()}
    for dialect, rendered in enumerate((librdkafka, java)):
        documented.append({each for cells in table.values() for each in re.findall(r"`([\w.]+)`", cells[dialect])})
        assert documented[dialect] <= rendered
    handlers = {"sasl.login.callback.handler.class", "sasl.client.callback.handler.class"}
    assert documented[1] >= java - handlers - {"ssl.truststore.type", "ssl.keystore.type"}


def test_the_commands_variables_are_listed() -> None:
    text = prose(GUIDES / "connection.md")
    assert [each for each in _VARIABLES.values() if f"`{each}`" not in text] == []
