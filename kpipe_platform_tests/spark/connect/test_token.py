from __future__ import annotations

from pathlib import Path

import pytest

from kpipe_platform.spark.connect.token import (
    TOKEN_VARIABLE,
    USUAL_PORT,
    forget_token,
    keep_token,
    token_file,
    token_for,
    without_token,
)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPIPE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_every_start_has_another_token_that_is_found_by_its_port() -> None:
    first = keep_token(15002)
    assert token_for("sc://127.0.0.1:15002") == first
    assert token_for("sc://127.0.0.1:15003") is None
    second = keep_token(15002)
    assert token_for("sc://127.0.0.1:15002") == second != first
    assert token_file(15002).stat().st_mode & 0o777 == 0o600
    forget_token(15002)
    forget_token(15002)
    assert token_for("sc://127.0.0.1:15002") is None


@pytest.mark.parametrize(
    ("remote", "known"),
    [
        ("sc://127.0.0.1:15002", True),
        ("sc://127.0.0.1", True),
        ("sc://localhost:15002/", True),
        ("sc://[::1]:15002", True),
        ("sc://127.0.0.1:15002/;user_id=ann", True),
        # Over a network Spark's client wants TLS for a token.
        ("sc://spark:15002", False),
        ("sc://127.0.0.1.example.com:15002", False),
        ("sc://127.0.0.1:15002/;token=own", False),
        ("sc://127.0.0.1:15002/;use_ssl=true", False),
    ],
)
@pytest.mark.parametrize("from_environment", [True, False])
def test_only_servers_of_this_machine_get_the_token(
    remote: str, known: bool, from_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_token(USUAL_PORT)
    if from_environment:
        monkeypatch.setenv(TOKEN_VARIABLE, "chosen")
    token = token_for(remote)
    assert (token is not None) == known
    assert not from_environment or token in (None, "chosen")


def test_a_chosen_token_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "chosen")
    assert keep_token(15002) == "chosen"
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert token_for("sc://127.0.0.1:15002") == "chosen"


def test_addresses_are_shown_without_their_token() -> None:
    assert without_token("sc://spark:1/;token=secret;user_id=ann") == "sc://spark:1/;token=***;user_id=ann"
    assert without_token("sc://spark:1") == "sc://spark:1"
