"""Base class of resources that have secrets, which come from environment variables and are shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources.known_names import KnownNames

# True while Dagster recreates the resource with the values of its environment variables.
_resolving: ContextVar[bool] = ContextVar("_resolving", default=False)


class HasSecrets(KnownNames, dg.ConfigurableResource):  # type: ignore[type-arg]
    """Base class of resources with secrets.

    Raises:
        ConfigError: A secret is a plain value.
    """

    # Names of the secret settings, and the beginning of the variable names that messages suggest.
    _secrets: ClassVar[tuple[str, ...]] = ()
    _variables: ClassVar[str] = ""
    # Whether the values come from a run config, in which Dagster has replaced variable names with their values.
    _is_from_run_config: ClassVar[bool] = False

    def __init__(self, **data: Any) -> None:
        self._refuse_plain_secrets(data)
        super().__init__(**data)

    @classmethod
    def configure_at_launch(cls, **kwargs: Any) -> Any:
        """Same as Dagster's. In the run config, secrets are ``{"env": "VARIABLE"}``.

        Raises:
            ConfigError: A setting is unknown, or a secret is a plain value.
        """
        cls._refuse_plain_secrets(kwargs)
        # Dagster creates a launch-configured resource from this class alone, so a subclass marks that its values come
        # from a run config. The subclass keeps the name, because Dagster shows it.
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        launched: Any = type(cls.__name__, (cls,), {**names, "_is_from_run_config": True})
        return super(HasSecrets, launched).configure_at_launch(**kwargs)

    @classmethod
    def _refuse_plain_secrets(cls, data: Mapping[str, Any]) -> None:
        for name in cls._secrets:
            if cls._is_shown(data.get(name)):
                msg = f"{cls.__name__}({name}=...) is a plain value, which Dagster would show in its UI"
                variable = f"{cls._variables}_{name.upper()}"
                fix = f'{name}=dg.EnvVar("{variable}"); in the run config {{"env": "{variable}"}}'
                raise ConfigError(msg, fix=fix, setting=name)

    @classmethod
    def _is_shown(cls, secret: object) -> bool:
        """Return whether a secret is a plain value that Dagster shows and stores.

        A value from a run config is not shown if the run config named an environment variable. Then the value is that
        of some environment variable.
        """
        if not is_plain(secret) or _resolving.get():
            return False
        return not (cls._is_from_run_config and secret in os.environ.values())

    def _with_updated_values(self, values: Mapping[str, Any] | None) -> Any:
        with _resolution():
            return super()._with_updated_values(values)


def is_plain(value: object) -> bool:
    """Return whether a setting is a plain value, which Dagster shows and stores, and not an ``EnvVar``."""
    return value is not None and not isinstance(value, dg.EnvVar)


def read_value(resource: object, setting: str, value: Any) -> Any:
    """Return a setting with environment variables replaced by their values.

    Raises:
        ConfigError: A variable is not set.
    """
    if isinstance(value, dict):
        return {name: read_value(resource, f"{setting}[{name!r}]", each) for name, each in value.items()}
    if not isinstance(value, dg.EnvVar):
        return value
    found = value.get_value()
    if found is None:
        name = type(resource).__name__
        msg = f"{name}.{setting}: the environment variable {value.env_var_name} is not set"
        raise ConfigError(msg, fix=f"export {value.env_var_name}=...", setting=setting)
    return found


@contextmanager
def _resolution() -> Iterator[None]:
    token = _resolving.set(True)
    try:
        yield
    finally:
        _resolving.reset(token)
