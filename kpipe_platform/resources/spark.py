"""The resource that gives a Spark session, made at first use."""

from __future__ import annotations

from typing import Any

from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from kpipe_platform.spark.session import EngineSettings, get_session


class SparkEngine(LazyPySparkResource):
    """A Spark session with the Kafka connector of the installed pyspark.

    Without arguments it is ``local[*]`` in this process. ``remote`` attaches to a Spark Connect server.
    """

    spark_config: dict[str, Any] = Field(default={}, description="Spark settings by their names")
    master: str | None = Field(default=None, description="local[*] or a cluster's master; not with remote")
    remote: str | None = Field(default=None, description="Spark Connect server, sc://host:port")
    app_name: str = Field(default="kpipe", description="name in Spark's UI")
    parallelism: int | None = Field(default=None, description="tasks at once; None: a local master's cores, else 4")

    @property
    def settings(self) -> EngineSettings:
        """The checked settings.

        Raises:
            ConfigError: A combination makes no sense.
        """
        return EngineSettings(
            master=self.master,
            remote=self.remote or None,
            app_name=self.app_name,
            config={name: str(value) for name, value in _flat(self.spark_config).items()},
            parallelism=self.parallelism,
        )

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = get_session(self.settings)


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names, as dagster-pyspark takes them too."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
