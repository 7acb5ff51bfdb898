"""The public API as text, a line for each function, method, field and enum member.

``python -m kpipe_platform_tests.public_api`` writes it to ``public_api.txt``, so that each change of the API shows in
the diff. Annotations are left out, because their text depends on the version of Python.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kpipe_platform

FILE = Path(__file__).with_name("public_api.txt")


def render() -> str:
    """The lines of ``public_api.txt``."""
    return "".join(f"{line}\n" for name in sorted(kpipe_platform.__all__) for line in _lines(name))


def _lines(name: str) -> Iterator[str]:
    value = getattr(kpipe_platform, name)
    if name == "__version__":
        return
    if not inspect.isclass(value):
        yield f"{name}{_parameters(value)}"
    elif issubclass(value, enum.Enum):
        yield from (f"{name}.{member.name} = {member.value!r}" for member in value)
    else:
        yield f"{name}{_parameters(value)}"
        for attribute in sorted(_own_attributes(value)):
            found = inspect.getattr_static(value, attribute)
            if isinstance(found, staticmethod | classmethod):
                found = found.__func__
            yield f"{name}.{attribute}{_parameters(found) if inspect.isfunction(found) else ''}"


def _own_attributes(cls: type) -> set[str]:
    """Public methods and properties that kpipe defines, also in the class's bases."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("kpipe_platform")]
    kinds = (property, staticmethod, classmethod)
    return {
        attribute
        for base in ours
        for attribute, found in vars(base).items()
        if not attribute.startswith("_") and (inspect.isfunction(found) or isinstance(found, kinds))
    }


def _parameters(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters if p.name != "self"]
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(bare)))


if __name__ == "__main__":
    FILE.write_text(render())
