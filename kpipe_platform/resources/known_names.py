"""Configuration that rejects unknown names and other kinds of nested resources, which Dagster does not check."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources._compat import PartialResource


class KnownNames(dg.Config):
    """Base class of kpipe's resources, IO managers and configurations. Dagster would ignore an unknown name.

    Raises:
        ConfigError: An argument is not a field of the class.
    """

    def __init__(self, **data: Any) -> None:
        self._refuse_unknown(data)
        super().__init__(**data)

    @classmethod
    def configure_at_launch(cls, **kwargs: Any) -> Any:
        """Same as Dagster's, but checks the names immediately instead of at launch."""
        cls._refuse_unknown(kwargs)
        return super().configure_at_launch(**kwargs)  # type: ignore[misc]  # of resources, which are the other base

    @classmethod
    def _refuse_unknown(cls, data: dict[str, Any]) -> None:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in data:
            if name not in known:
                msg = f"{cls.__name__} has no setting {name!r}"
                nearest = get_close_matches(name, known, n=1)
                fix = f"did you mean {nearest[0]!r}?" if nearest else f"its settings are: {', '.join(known)}"
                raise ConfigError(msg, fix=fix, setting=name)


def require_kind(owner: type, data: Mapping[str, Any], name: str, *kinds: type) -> None:
    """Reject a nested resource of another class. Dagster accepts any value there and would fail at its first use.

    Resources that are configured at launch are checked by their class. The value of a resource that a function
    creates is available only within a run, and is checked there.

    Raises:
        ConfigError: The value is not a resource of these classes.
    """
    value = data.get(name)
    given = value.resource_cls if isinstance(value, PartialResource) else type(value)
    if value is not None and not issubclass(given, (*kinds, dg.ResourceDefinition)):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        msg = f"{owner.__name__}({name}=...) is a {given.__name__}, not a {wanted}"
        raise ConfigError(msg, fix=f"{name}={kinds[0].__name__}(...)", setting=name)
