"""The resources that provide a Spark session: kpipe's own, created at first use, and those of dagster-pyspark."""

from __future__ import annotations

from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pydantic import Field, PrivateAttr

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources.known_names import KnownNames
from kpipe_platform.slices.settings import Engine
from kpipe_platform.spark.engine.attach import detach, remote_of, tasks_of
from kpipe_platform.spark.engine.connector import require_connector
from kpipe_platform.spark.engine.session import get_session, use_this_python
from kpipe_platform.spark.engine.settings import ASSUMED_TASKS, EngineSettings


class SparkEngine(KnownNames, LazyPySparkResource):
    """A Spark session with the Kafka connector of the installed pyspark.

    Without arguments, Spark runs in this process as ``local[*]``. ``remote`` attaches to a Spark Connect server, for
    example that of ``kpipe spark start``. Each process has its own session there. It is released when the last run that
    uses it ends, and opened again after a restart of the server.
    """

    spark_config: dict[str, Any] = Field(default={}, description="Spark settings by name")
    master: str | None = Field(
        default=None, description="local[*] or the master URL of a cluster; not together with remote"
    )
    remote: str | None = Field(default=None, description="Spark Connect server, sc://host:port")
    app_name: str = Field(default="kpipe", description="name in Spark's UI")
    parallelism: int | None = Field(
        default=None,
        description="number of tasks at once; None: a local master's cores, or what a Connect server reports; else 4",
    )
    _holder: object = PrivateAttr(default_factory=object)

    @property
    def settings(self) -> EngineSettings:
        """The checked settings.

        Raises:
            ConfigError: A combination of settings is invalid.
        """
        return EngineSettings(
            master=self.master,
            remote=self.remote or None,
            app_name=self.app_name,
            config={name: str(value) for name, value in _flat(self.spark_config).items()},
            parallelism=self.parallelism,
        )

    @property
    def known_tasks_at_once(self) -> int | None:
        """Number of tasks that the engine runs at once. A Connect server is queried for it; None if it is not known."""
        settings = self.settings
        known = settings.known_tasks_at_once
        return tasks_of(self.spark_session) if known is None and settings.remote else known

    @property
    def tasks_at_once(self) -> int:
        """Number of tasks that the engine runs at once, with a default if it is not known."""
        return self.known_tasks_at_once or ASSUMED_TASKS

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Release the session on a Connect server unless another run of this process uses it."""
        detach(self._holder)

    def _init_session(self) -> None:
        settings = self.settings
        # A session on a Connect server is checked each time, because the server may have been restarted.
        if self._spark_session is None or settings.remote:
            self._spark_session = get_session(settings, self._holder)


class SessionEngine:
    """The engine of a session that a resource of dagster-pyspark provides, with that resource's settings.

    Args:
        resource: The resource.
    """

    def __init__(self, resource: LazyPySparkResource | PySparkResource) -> None:
        self._resource = resource
        self._tasks: int | None = None

    @property
    def spark_session(self) -> Any:
        """The session.

        Raises:
            ConfigError: There is no session outside a run, or it has no Kafka connector.
        """
        use_this_python()
        session = self._resource.spark_session
        if session is None:
            msg = f"{type(self._resource).__name__} starts its Spark session within a run, but no run is active"
            raise ConfigError(msg, fix="use SparkEngine or LazyPySparkResource, which start the session at first use")
        require_connector(session)
        return session

    @property
    def known_tasks_at_once(self) -> int | None:
        """Number of tasks that the engine runs at once, as the session reports it; None if it does not."""
        if self._tasks is None:
            self._tasks = tasks_of(self.spark_session)
        return self._tasks

    @property
    def tasks_at_once(self) -> int:
        """Number of tasks that the engine runs at once, with a default if it is not known."""
        return self.known_tasks_at_once or ASSUMED_TASKS

    @property
    def remote(self) -> str | None:
        """Address of the Spark Connect server; None for a session in this process."""
        return remote_of(self.spark_session)


def engine_of(resource: LazyPySparkResource | PySparkResource) -> Engine:
    """Return the engine of a resource that provides a Spark session."""
    return resource if isinstance(resource, SparkEngine) else SessionEngine(resource)


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names, which dagster-pyspark accepts too."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
