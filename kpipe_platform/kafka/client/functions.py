"""Import a user's function by its path, ``package.module:function``, in each process that calls it."""

from __future__ import annotations

import importlib
from typing import Any

from kpipe_platform.errors import ConfigError


def load_function(path: str, *, what: str, takes: str, setting: str) -> Any:
    """Import a function.

    Args:
        path: ``package.module:function``.
        what: What the function is, for messages: ``"redaction hook"``.
        takes: Its parameters, for the fix.
        setting: Name of the setting that has the path, an attribute of the error.

    Raises:
        ConfigError: The function does not exist, its module cannot be imported, or it is not callable.
    """
    module_name, colon, function_name = path.partition(":")
    if not (module_name and colon and function_name):
        msg = f"the {what} {path!r} does not name a function"
        raise ConfigError(msg, fix='use the form "package.module:function"', **{setting: path})
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's code
        msg = f"the module of the {what} {path!r} cannot be imported: {type(error).__name__}: {error}"
        fix = "install the module where Dagster runs and where Spark's workers run, or correct the path"
        raise ConfigError(msg, fix=fix, **{setting: path}) from error
    for name in function_name.split("."):
        target = getattr(target, name, None)
    if not callable(target):
        found = "its module has no such name" if target is None else f"it is an object of type {type(target).__name__}"
        msg = f"the {what} {path!r} cannot be called: {found}"
        raise ConfigError(msg, fix=f"name a function that takes {takes}", **{setting: path})
    return target
