"""Metadata as tests compare it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kpipe_platform.metadata_keys import PREFIX


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as plain values, kpipe's own keys without their prefix."""
    return {key.removeprefix(PREFIX): getattr(value, "value", value) for key, value in metadata.items()}
