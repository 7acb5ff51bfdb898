"""The token that a Spark Connect server on this machine requires, since a client can run code as the server's user.

The token is stored in a file for each port, which only this user may read, so that every process of the user that has
the server's address can attach. It is not part of the address, which is logged, and not on a command line, which all
users of the machine can read.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from kpipe_platform.jvm.folders import state_dir
from kpipe_platform.jvm.private_files import private_folder, write_private

__all__ = ["TOKEN_VARIABLE", "USUAL_PORT", "forget_token", "keep_token", "token_file", "token_for", "without_token"]

TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # Spark's own environment variable
USUAL_PORT = 15002
"""Spark's default port for Connect servers."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def token_file(port: int) -> Path:
    """Path of the file with the token of the server on a port."""
    return state_dir() / "spark-tokens" / str(port)


def keep_token(port: int) -> str:
    """Store the token for a server that is about to start.

    Returns:
        The token from the environment variable ``SPARK_CONNECT_AUTHENTICATE_TOKEN``, or else a new one.
    """
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(32)
    path = token_file(port)
    private_folder(path.parent)
    write_private(path, token)
    return token


def forget_token(port: int) -> None:
    """Delete the token of a stopped server."""
    token_file(port).unlink(missing_ok=True)


def token_for(remote: str) -> str | None:
    """The token for a server on the loopback interface; None for other servers, or if there is no token.

    Args:
        remote: The server's address. If it contains a token or requests TLS, the result is None, because Spark's client
            handles both.
    """
    address = urlsplit(remote)
    # The path contains Spark's parameters: "/;use_ssl=true;token=...".
    if address.hostname not in _LOOPBACK or "token=" in address.path or "use_ssl=" in address.path:
        return None
    try:
        return os.environ.get(TOKEN_VARIABLE) or token_file(address.port or USUAL_PORT).read_text(encoding="utf-8")
    except OSError:
        return None


def without_token(remote: str) -> str:
    """A server's address for logs and messages, with its token masked."""
    return re.sub(r"(?<=token=)[^;]*", "***", remote)
