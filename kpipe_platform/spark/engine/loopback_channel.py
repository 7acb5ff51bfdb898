"""The channel to a Spark Connect server of this machine that asks for a token."""

from __future__ import annotations

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder

__all__ = ["LoopbackChannel"]


class LoopbackChannel(DefaultChannelBuilder):
    """Sends a token without TLS, over the loopback interface only.

    Spark's own builder does so where the host is called ``localhost``. That name may stand for ``::1`` too, where
    another user could wait for the token while the server listens on 127.0.0.1.

    Args:
        remote: The server's address.
        token: Its token.
    """

    def __init__(self, remote: str, token: str) -> None:
        super().__init__(remote)
        self.set(self.PARAM_TOKEN, token)

    def toChannel(self) -> grpc.Channel:
        """The channel; gRPC refuses to send the token where the server's address is not of this machine."""
        credentials = grpc.composite_channel_credentials(
            grpc.local_channel_credentials(), grpc.access_token_call_credentials(self.token)
        )
        return self._secure_channel(self.endpoint, credentials)
