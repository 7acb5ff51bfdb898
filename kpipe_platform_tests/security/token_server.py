"""A token endpoint with the OIDC client credentials grant, and the keys that brokers verify its tokens with."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "kafka"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _json(value: Any) -> str:
    return _encoded(json.dumps(value).encode())


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class TokenServer:
    """Gives tokens to known clients.

    Attributes:
        lifetime_s: How long a token is valid, seconds.
        given: Number of tokens given, by client id and client library (``librdkafka``, ``java`` or ``callback``).
        scopes: The scopes that were requested.
    """

    def __init__(self, clients: dict[str, str], lifetime_s: float) -> None:
        self._clients = clients
        self.lifetime_s = lifetime_s
        self.given: Counter[tuple[str, str]] = Counter()
        self.scopes: set[str] = set()
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.token_url, self.jwks_url = f"{self.url}/token", f"{self.url}/jwks"

    @contextmanager
    def running(self) -> Iterator[TokenServer]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def token(self, client_id: str, who: str) -> tuple[str, float]:
        """A signed token, and when it expires, seconds since 1970."""
        now = time.time()
        expiry = now + self.lifetime_s
        claims = {"sub": client_id, "iss": self.url, "aud": AUDIENCE, "scope": "kafka", "iat": int(now), "exp": expiry}
        signed = f"{_json({'alg': 'RS256', 'typ': 'JWT', 'kid': 'k1'})}.{_json({**claims, 'exp': int(expiry)})}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.given[client_id, who] += 1
        return f"{signed}.{_encoded(signature)}", int(expiry)

    def _keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "kid": "k1",
            "use": "sig",
            "alg": "RS256",
            "n": _number(numbers.n),
            "e": _number(numbers.e),
        }
        return {"keys": [key]}

    def _answer(self, authorization: str, body: dict[str, list[str]], agent: str) -> tuple[int, dict[str, Any]]:
        kind, _, encoded = authorization.partition(" ")
        client_id, _, secret = base64.b64decode(encoded).decode().partition(":") if kind == "Basic" else ("", "", "")
        if self._clients.get(unquote(client_id)) != unquote(secret) or body.get("grant_type") != ["client_credentials"]:
            return 401, {"error": "invalid_client"}
        self.scopes.update(body.get("scope", []))
        who = "callback" if agent == "callback" else "java" if agent.startswith("Java") else "librdkafka"
        token, expiry = self.token(client_id, who)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(expiry - time.time())}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, outer._keys())

            def do_POST(self) -> None:
                body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                agent = self.headers.get("User-Agent") or ""
                self._send(*outer._answer(self.headers.get("Authorization") or "", body, agent))

            def _send(self, status: int, answer: dict[str, Any]) -> None:
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
