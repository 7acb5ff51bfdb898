"""Options that several commands share, and options of the form NAME=VALUE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from kpipe_platform.errors import ConfigError

__all__ = ["AsJson", "Foreground", "Yes", "name_values"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Foreground = Annotated[bool, typer.Option("--foreground", help="Run in the foreground until Ctrl-C.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


def name_values(texts: Iterable[str], *, example: str, option: str = "--setting") -> dict[str, str]:
    """Parse settings of the form NAME=VALUE.

    Args:
        texts: Values of the option.
        example: A valid value, for the error message.
        option: Name of the option, for the error message.

    Returns:
        The values by name.

    Raises:
        ConfigError: A text does not have this form.
    """
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            msg = f"{option} {text!r} is not of the form NAME=VALUE."
            raise ConfigError(msg, fix=f"write it like {option} {example}")
        settings[name.strip()] = value.strip()
    return settings
