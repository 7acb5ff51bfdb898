"""A token callback, as a user writes it. Spark's Python workers import it too."""

from __future__ import annotations

import base64
import json
import time
import urllib.request


def token(config: str | None) -> tuple[str, float]:
    """Get a token from the token endpoint of the tests; the config is its address and a secret."""
    url, _, secret = (config or "").partition(" ")
    credentials = base64.b64encode(f"kpipe:{secret}".encode()).decode()
    request = urllib.request.Request(
        url,
        data=b"grant_type=client_credentials",
        headers={"Authorization": f"Basic {credentials}", "User-Agent": "callback"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        answer = json.load(response)
    return answer["access_token"], time.time() + answer["expires_in"]


def wrong(config: str | None) -> str:
    """Return something else than a token."""
    return "a-token-that-must-not-be-shown"


def fails(config: str | None) -> None:
    """Fail with a secret in the message."""
    raise RuntimeError("password-in-the-message")
