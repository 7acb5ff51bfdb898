"""The optional packages of the Protobuf codec, and what kpipe uses of them that is not public.

ptars has no public way to use a descriptor that is not in Python's own pool. ``kpipe_platform_tests/codecs/protobuf``
compares what it decodes and encodes with the Protobuf runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from kpipe_platform.errors import require_packages

__all__ = ["ArrowMessages", "arrow_messages", "is_panic", "protoc_command", "require"]


class ArrowMessages(Protocol):
    """Converts messages of one type to Arrow and back."""

    def array_to_record_batch(self, array: Any) -> Any:
        """Decode an array of serialized messages. A null decodes as an empty message."""

    def record_batch_to_array(self, batch: Any) -> Any:
        """Encode messages. A column that the batch does not have is a field without a value."""

    def schema(self) -> Any:
        """Return the Arrow schema of the messages."""


def require() -> None:
    """Check that the optional packages are installed.

    Raises:
        EnvironmentSetupError: A package is missing.
    """
    require_packages("ProtobufCodec", "protobuf", "google.protobuf", "ptars")


def arrow_messages(file: bytes, message: str) -> ArrowMessages:
    """Return the converter for a message type of a serialized ``FileDescriptorProto`` without imports."""
    require()
    from ptars import PtarsConfig
    from ptars._lib import ProtoRegistry

    # Unsigned integers, times and wrappers are converted by kpipe. An element that is missing in a map must be null.
    config = PtarsConfig(enum_repr="string", map_value_nullable=True)
    made: ArrowMessages = ProtoRegistry([file]).create_for_message(message, config)
    return made


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic in Rust, which is not an ``Exception``."""
    return type(error).__name__ == "PanicException"


def protoc_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of the Protobuf compiler.

    Raises:
        EnvironmentSetupError: The package with the compiler is missing.
    """
    require_packages("ProtobufCodec", "protobuf", "grpc_tools")
    return [sys.executable, "-m", "grpc_tools.protoc", *arguments]
