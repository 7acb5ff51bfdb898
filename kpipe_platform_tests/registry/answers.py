"""A small HTTP server that answers as a test says, for the failures that a real registry does not have on request."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answers:
    """The answers of the server, and what it was asked.

    Attributes:
        url: Its address.
        answer: Returns status and body for a request; a body that is not bytes is sent as JSON.
        requests: Method, path and headers of each request.
    """

    url: str
    answer: Callable[[str], tuple[int, Any]]
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)


@contextmanager
def serving(
    answer: Callable[[str], tuple[int, Any]], *, delay_s: float = 0.0, tls: ssl.SSLContext | None = None
) -> Iterator[Answers]:
    """Run the server for the ``with`` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.requests.append((self.command, self.path, dict(self.headers)))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(delay_s)
            status, body = answers.answer(self.path)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # A client that gave up is no error of the test.
    server.handle_error = lambda *_: None  # type: ignore[method-assign,assignment,misc]
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    answers = Answers(f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}", answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
