"""The Spark session: started at first use, with the Kafka connector that matches the installed pyspark."""

from __future__ import annotations

import logging
import os
import sys

import pyspark
from pyspark.sql import SparkSession

from kpipe_platform.errors import ConfigError
from kpipe_platform.jvm.jars import spark_connector_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.spark.causes import is_of_lost_java
from kpipe_platform.spark.engine.attach import attach
from kpipe_platform.spark.engine.connector import REDACTION, SECRET_OPTIONS, require_connector
from kpipe_platform.spark.engine.settings import EngineSettings, local_tasks
from kpipe_platform.spark.failures import java_lost

logger = logging.getLogger(__name__)

# Spark settings for processing slices. A user's own settings override them.
_DEFAULTS = {
    # Batches of 10,000 Kafka records limit the memory of the Python worker.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Limits the memory if records are large.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    # Spark's default of 200 shuffle partitions is too many for a slice.
    "spark.sql.shuffle.partitions": "8",
    # Compressing a slice's cached rows costs more than it saves: they are read once or twice.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    REDACTION: SECRET_OPTIONS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The default is 1 GB; a persisted slice of a million records needs more.
    "spark.driver.memory": "2g",
    # A slice is a batch job, for which throughput matters more than short pauses.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
_LOCAL = {
    # A local engine shuffles within one machine, where compression costs more than it saves.
    "spark.shuffle.compress": "false",
    # A Python worker ends if its task fails. Without this daemon, the next worker would import pandas and Arrow again,
    # which takes about a second.
    "spark.python.daemon.module": "kpipe_platform.spark.connect.worker_daemon",
}
# Without limits, Avro allocates as many bytes or items as a corrupt record announces, up to 2 GB, which ends the JVM.
_AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{name}.maxLength={limit}"
    for name, limit in (("bytes", 2**26), ("string", 2**26), ("collectionItems", 2**24))
)
# Driver settings, which do not apply to a Connect client.
_CLASSIC_ONLY = ("spark.ui.", "spark.driver.")


def get_session(settings: EngineSettings, holder: object = None) -> SparkSession:
    """Get this process's session for these settings. Starts one if there is none.

    Args:
        settings: The engine settings.
        holder: Owner that keeps a session on a Connect server open until `kpipe_platform.spark.engine.attach.detach`.

    Raises:
        ConfigError: This process already uses another kind of engine (its own Spark or a Connect server), or a session
            that lacks the Kafka connector.
        EnvironmentSetupError: Java or the connector jars are missing.
        EngineUnavailableError: The Connect server does not respond, or this process's Java process is gone.
    """
    use_this_python()
    if settings.remote:
        config = {**_DEFAULTS, **settings.config}
        of_a_session = {name: value for name, value in config.items() if not name.startswith(_CLASSIC_ONLY)}
        return attach(settings, of_a_session, holder)
    return _classic(settings)


def use_this_python() -> None:
    """Let a Spark that starts later start its workers with this Python, unless a variable names another.

    By default they are the first python3 on PATH, which often lacks the required packages.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _classic(settings: EngineSettings) -> SparkSession:
    try:
        active = SparkSession.getActiveSession()
    except Exception as error:
        if is_of_lost_java(error):
            raise java_lost("") from error
        raise
    if active is not None:
        # Something else may have started it, without the connector.
        require_connector(active)
        return active
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        msg = "this process is attached to a Spark Connect server, so it cannot start its own Spark session"
        raise ConfigError(msg, fix="give all SparkEngines of a process the same remote, or give none of them a remote")
    master = settings.master or "local[*]"
    config = {**_DEFAULTS, **settings.config}
    if "spark.jars" not in config and "spark.jars.packages" not in config:
        jars = spark_connector_jars(pyspark.__version__)
        config["spark.jars"] = ",".join(str(jar) for jar in jars)
    for name in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        # The user's options come last, so that they apply.
        config[name] = f"{_AVRO_LIMITS} {config.get(name, '')}".strip()
    if local_tasks(master) is not None:
        config = {**_LOCAL, **config}
    else:
        for name in ("spark.driver.host", "spark.driver.bindAddress"):
            if name not in settings.config:
                del config[name]
    os.environ.setdefault("JAVA_HOME", str(find_java().path.resolve().parent.parent))
    builder = SparkSession.builder.master(master).appName(settings.app_name)
    for name, value in config.items():
        builder = builder.config(name, value)
    logger.info("starting Spark %s on %s", pyspark.__version__, master)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
