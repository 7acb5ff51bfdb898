"""The gRPC channel to a Spark Connect server on this machine that requires a token."""

from __future__ import annotations

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder

__all__ = ["LoopbackChannel"]


class LoopbackChannel(DefaultChannelBuilder):
    """Sends a token without TLS, over the loopback interface only.

    Spark's own builder does so if the host is ``localhost``. That name may also resolve to ``::1``, where another user
    could listen to obtain the token while the server listens on 127.0.0.1.

    Args:
        remote: The server's address.
        token: Its token.
    """

    def __init__(self, remote: str, token: str) -> None:
        super().__init__(remote)
        self.set(self.PARAM_TOKEN, token)

    def toChannel(self) -> grpc.Channel:
        """Make the channel. gRPC refuses to send the token if the server is not on this machine."""
        credentials = grpc.composite_channel_credentials(
            grpc.local_channel_credentials(), grpc.access_token_call_credentials(self.token)
        )
        return self._secure_channel(self.endpoint, credentials)
