"""Configuration base class that rejects unknown names. Dagster ignores them, so a typo would select the default."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import dagster as dg

from kpipe_platform.errors import ConfigError


class KnownNames(dg.Config):
    """Base class of kpipe's resources, IO managers and configurations.

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
