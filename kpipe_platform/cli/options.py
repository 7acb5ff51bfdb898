"""Options of the form NAME=VALUE."""

from __future__ import annotations

from collections.abc import Iterable

from kpipe_platform.errors import ConfigError

__all__ = ["name_values"]


def name_values(texts: Iterable[str], *, example: str) -> dict[str, str]:
    """Settings by their names.

    Args:
        texts: What was given with ``--setting``.
        example: One that makes sense, for the error.

    Raises:
        ConfigError: One is not of the form.
    """
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            msg = f"--setting {text!r} is not of the form NAME=VALUE."
            raise ConfigError(msg, fix=f"for example --setting {example}")
        settings[name.strip()] = value.strip()
    return settings
