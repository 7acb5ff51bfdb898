"""A user's hook takes out what a dead letter must not keep; without it, nothing is written."""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kpipe_platform.dead_letters import (
    DeadLetter,
    DeadLetterContext,
    Retry,
    build_dead_letter,
    decode_envelope,
    envelope_schema,
    load_redaction,
)
from kpipe_platform.errors import ConfigError, DeadLetterError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault

SECRET = "ann@example.org"
RECORD = KafkaRecord(
    topic="people",
    partition=1,
    offset=7,
    timestamp_ms=5,
    timestamp_type="create_time",
    key=SECRET.encode(),
    value=b'{"mail": "ann@example.org"}',
    headers=(("mail", SECRET.encode()), ("trace", b"1")),
)
FAULT = Fault(Component.STAGE, "ValueError", "ValueError", f"bad {SECRET}", 0, stacktrace=f"raise ({SECRET})")
HOOKS = f"""
from dataclasses import replace

SECRET = {SECRET!r}
calls = 0


def mask(record, fault):
    global calls
    calls += 1
    kept = replace(
        record,
        key=b"***",
        value=record.value.replace(SECRET.encode(), b"***"),
        headers=[(name, value) for name, value in record.headers if name != "mail"],
    )
    return kept, replace(fault, message=fault.message.replace(SECRET, "***"), stacktrace=None)


def only_the_record(record, fault):
    return replace(record, value=None)


def raises(record, fault):
    raise KeyError(SECRET)


def nothing(record, fault):
    return None


def text(record, fault):
    return replace(record, value="text")


def three(record, fault):
    return record, fault, 1


def elsewhere(record, fault):
    return replace(record, offset=8)


class Masks:
    @staticmethod
    def mask(record, fault):
        return mask(record, fault)


number = 7
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "people_hooks.py").write_text(HOOKS)
    (tmp_path / "broken_hooks.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_redaction.cache_clear()
    yield
    load_redaction.cache_clear()
    sys.modules.pop("people_hooks", None)


def context(name: str = "mask", **changes: Any) -> DeadLetterContext:
    hooked = DeadLetterContext("people.dlq", "people_clean", "7f3e", "g", redact=f"people_hooks:{name}")
    return replace(hooked, **changes)


def everything_of(letter: DeadLetter) -> bytes:
    """All bytes of a dead letter, those behind base64 too."""
    parts = [letter.key or b"", letter.value or b"", *(value or b"" for _, value in letter.headers)]
    if letter.value is not None and letter.value.startswith(b'{"schema"'):
        original = decode_envelope(letter.value).original
        parts += [original.key or b"", original.value or b"", *(value or b"" for _, value in original.headers)]
    return b"\n".join(parts)


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize("form", ["envelope", "raw"])
@pytest.mark.parametrize("families", [("connect",), ("spring", "connect")])
def test_nothing_of_what_the_hook_takes_out_is_written(form: str, families: tuple[str, ...]) -> None:
    retries = (Retry(1, 1, None, "ValueError", f"bad {SECRET}"),)
    chosen = context(form=form, header_families=families, retries=retries)
    letter = build_dead_letter(RECORD, FAULT, chosen, 9, retries=retries)
    assert SECRET.encode() not in everything_of(letter)
    assert letter.key == b"***"
    assert letter.headers[0] == ("trace", b"1")
    assert b"bad ***" in everything_of(letter)


@pytest.mark.usefixtures("hooks")
def test_a_redacted_envelope_says_so_and_restores_what_is_left() -> None:
    retries = (Retry(1, 1, 5, "ValueError", SECRET),)
    letter = build_dead_letter(RECORD, FAULT, context(), 9, retries=retries)
    assert letter.value is not None
    Draft202012Validator(envelope_schema()).validate(json.loads(letter.value))
    envelope = decode_envelope(letter.value)
    assert envelope.redacted
    kept = replace(RECORD, key=b"***", value=b'{"mail": "***"}', headers=(("trace", b"1"),))
    assert envelope.restore(letter.key, letter.headers) == kept
    assert (envelope.correlation_id, envelope.header_count) == ("people-1-7", 1)
    assert envelope.retries == (Retry(1, 1, 5, "ValueError", ""),)


@pytest.mark.usefixtures("hooks")
def test_a_reference_has_the_checksum_of_what_is_left() -> None:
    record = replace(RECORD, value=RECORD.value * 100)
    letter = build_dead_letter(record, FAULT, context(max_record_bytes=2_500), 9)
    assert letter.value is not None
    envelope = decode_envelope(letter.value)
    assert envelope.reference is not None
    assert envelope.reference.value_sha256 == hashlib.sha256(b'{"mail": "***"}' * 100).hexdigest()


@pytest.mark.usefixtures("hooks")
def test_raw_form_is_marked_behind_the_records_own_headers_even_where_only_the_least_fits() -> None:
    letter = build_dead_letter(RECORD, FAULT, context(form="raw"), 9)
    assert letter.headers[:2] == (("trace", b"1"), ("kpipe.redacted", b"true"))
    again = build_dead_letter(replace(RECORD, headers=letter.headers), FAULT, context(form="raw"), 9)
    own = len(letter.headers)
    assert again.headers[: own + 1] == (*letter.headers, ("kpipe.redacted", b"true"))
    least = build_dead_letter(RECORD, FAULT, context(form="raw", max_record_bytes=340), 9)
    assert ("kpipe.redacted", b"true") in least.headers
    assert len(least.headers) < len(letter.headers)
    oversized = context(oversized="raw", max_record_bytes=2_200)
    big = build_dead_letter(replace(RECORD, value=b"x" * 1_500), FAULT, oversized, 9)
    assert (big.value, big.headers[1]) == (b"x" * 1_500, ("kpipe.redacted", b"true"))


@pytest.mark.usefixtures("hooks")
def test_a_hook_may_return_the_record_alone() -> None:
    letter = build_dead_letter(RECORD, FAULT, context("only_the_record"), 9)
    assert letter.value is not None
    envelope = decode_envelope(letter.value)
    assert (envelope.original, envelope.fault) == (replace(RECORD, value=None), FAULT)


def test_without_a_hook_nothing_is_marked() -> None:
    plain = DeadLetterContext("people.dlq", "people_clean", "7f3e", "g")
    letter = build_dead_letter(RECORD, FAULT, plain, 9)
    assert letter.value is not None
    assert not decode_envelope(letter.value).redacted
    raw = build_dead_letter(RECORD, FAULT, replace(plain, form="raw"), 9)
    assert "kpipe.redacted" not in dict(raw.headers)


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("raises", r"raised KeyError in raises \(people_hooks\.py, line \d+\)"),
        ("nothing", "returned NoneType"),
        ("three", r"returned \(KafkaRecord, Fault, int\)"),
        ("elsewhere", r"returned a record at people\[1\]@8"),
    ],
)
def test_a_hook_that_fails_writes_nothing_and_tells_no_value(name: str, what: str) -> None:
    with pytest.raises(DeadLetterError, match=what) as caught:
        build_dead_letter(RECORD, FAULT, context(name), 9)
    assert "people[1]@7" in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.usefixtures("hooks")
def test_a_hook_that_returns_text_is_refused() -> None:
    with pytest.raises(DeadLetterError, match=r"the value of people\[1\]@7 is str"):
        build_dead_letter(RECORD, FAULT, context("text"), 9)


@pytest.mark.usefixtures("hooks")
def test_the_hook_is_imported_once_and_may_be_a_method() -> None:
    assert load_redaction("people_hooks:mask") is load_redaction("people_hooks:mask")
    build_dead_letter(RECORD, FAULT, context("Masks.mask"), 9)
    assert sys.modules["people_hooks"].calls == 1


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("people_hooks", "does not name a function"),
        ("people_hooks:", "does not name a function"),
        (":mask", "does not name a function"),
        ("no_such_module:mask", "cannot be imported: ModuleNotFoundError"),
        ("broken_hooks:mask", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("people_hooks:no_such_function", "cannot be called: its module has no such name"),
        ("people_hooks:number", "cannot be called: it is an object of type int"),
    ],
)
def test_a_path_that_is_no_hook(path: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        load_redaction(path)
    assert caught.value.fix
    with pytest.raises(ConfigError):
        build_dead_letter(RECORD, FAULT, context(redact=path), 9)
