"""Tokens from a Python function: fetched before a client is made, shared, refreshed, and never shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kpipe_platform.errors import AuthenticationFailedError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.client.tokens import CallbackTokens, MskTokens, TokenSource

HERE = __name__
given: list[str | None] = []
lifetime_s = 100.0


def token(config: str | None) -> tuple[str, float]:
    given.append(config)
    return f"token-{len(given)}", time.time() + lifetime_s


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    given.clear()
    TokenSource._tokens.clear()
    yield
    TokenSource._tokens.clear()


def test_new_clients_share_a_token_until_half_of_its_lifetime_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    source, now_s = CallbackTokens(f"{HERE}:token"), time.time()
    assert source("c")[0] == CallbackTokens(f"{HERE}:token")("c")[0] == "token-1"
    monkeypatch.setattr("time.time", lambda: now_s + lifetime_s * 0.6)
    assert source("c")[0] == "token-2"
    assert given == ["c", "c"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrong", "returned str, which is not a token"),
        ("fails", "raised RuntimeError"),
        ("expired", "returned a token that has expired"),
    ],
)
def test_a_callback_that_gives_no_token(name: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    module = HERE if name == "expired" else "kpipe_platform_tests.security.callbacks"
    settings = ConnectionSettings(
        "127.0.0.1:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        oauth_token_callback=f"{module}:{name}",
    )
    began = time.monotonic()
    with pytest.raises(AuthenticationFailedError, match=says) as caught:
        Clients(settings).admin()
    # confluent-kafka would wait 10 s.
    assert time.monotonic() - began < 8
    assert "must-not-be-shown" not in str(caught.value) + caplog.text
    assert "password-in-the-message" not in str(caught.value) + caplog.text
    assert says in caplog.text


def expired(config: str | None) -> tuple[str, float]:
    return "old", time.time() - 1


def test_msk_signs_a_token_with_the_credentials_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "hush"}.items():
        monkeypatch.setenv(name, value)
    token, expiry_s = MskTokens("eu-west-1")()
    assert len(token) > 500
    # 15 minutes, which the signer counts in milliseconds.
    assert 60 < expiry_s - time.time() <= 900


def test_msk_without_credentials_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(region: str, profile: str) -> Any:
        raise ValueError("No AWS credentials found")

    monkeypatch.setattr("aws_msk_iam_sasl_signer.MSKAuthTokenProvider.generate_auth_token_from_profile", none)
    with pytest.raises(AuthenticationFailedError, match="No AWS credentials found") as caught:
        MskTokens("eu-west-1", profile="none")()
    assert "give this process AWS credentials" in str(caught.value)
