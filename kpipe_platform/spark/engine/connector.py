"""Check that a Spark session that kpipe did not start can read Kafka."""

from __future__ import annotations

import re
import weakref

from pyspark.sql import SparkSession

from kpipe_platform.errors import ConfigError
from kpipe_platform.jvm.jars import connector_coordinate
from kpipe_platform.kafka.client.properties import SECRET_WORDS
from kpipe_platform.spark.failures import classify

# A static method of each jar that the connector needs. With spark.jars instead of spark.jars.packages, Spark adds no
# dependencies, and a class that is missing is noticed only by the task that reads. Spark looks the methods up when it
# analyzes the query, in this process and on a Connect server alike; nothing calls them.
_CLASSES = {
    "org.apache.kafka.common.utils.AppInfoParser": "'getVersion'",
    "org.apache.commons.pool2.impl.CallStackUtils": "'newCallStack', '', true",
    "org.apache.spark.kafka010.KafkaTokenSparkConf": "'CLUSTERS_CONFIG_PREFIX'",
}
_LOOKUP = "SELECT " + ", ".join(f"reflect('{name}', {method})" for name, method in _CLASSES.items())
_MISSING = (
    "Failed to find data source: kafka",
    "DATA_SOURCE_NOT_FOUND",
    "UNEXPECTED_CLASS_TYPE",
    "NoClassDefFoundError",
    "ClassNotFoundException",
)
_PACKAGES = "spark.jars.packages"

REDACTION = "spark.sql.redaction.string.regex"
"""Setting of a session: what Spark removes from plans and statements in its UI, event logs and explanations."""
# A Connect server has each query there as text, with the options of its source. Spark's own pattern is for settings
# only, and does not cover the Java client's names.
_WORDS = "|".join(map(re.escape, SECRET_WORDS))
SECRET_OPTIONS = rf'key: "[^"]*({_WORDS})[^"]*"\s+value: "(\\.|[^"\\])*"?'

_checked: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def require_connector(session: SparkSession) -> None:
    """Check once that a session has the Kafka connector with its dependencies, and let it redact secrets.

    Contacts no broker.

    Raises:
        ConfigError: It has not. The error names the value of ``spark.jars.packages`` to set.
        KpipeError: The session is gone.
    """
    if session in _checked:
        return
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "topic")
    try:
        # A Connect session analyzes the query when its schema is read.
        reader.load().schema  # noqa: B018
        session.sql(_LOOKUP).schema  # noqa: B018
    except Exception as error:
        if not any(mark in str(error) for mark in _MISSING):
            raise classify(error, "the session's Kafka connector") from error
        raise _missing(session, str(error)) from error
    if session.conf.get(REDACTION, None) is None:
        session.conf.set(REDACTION, SECRET_OPTIONS)
    _checked.add(session)


def _missing(session: SparkSession, text: str) -> ConfigError:
    coordinate = connector_coordinate(session.version)
    absent = next((name for name in _CLASSES if f"class {name} not found" in text), None)
    given = session.conf.get(_PACKAGES, None) or ""
    packages = [package for package in given.split(",") if package and package != coordinate]
    value = ",".join([*packages, coordinate])
    fix = (
        f'spark_config={{"{_PACKAGES}": "{value}"}} where the session is started first, in a new process: Spark does '
        "not add it to one that runs. Or let SparkEngine start the session"
    )
    msg = "the Spark session has no Kafka connector"
    if absent is not None:
        msg = f"the Kafka connector of the Spark session is incomplete: there is no class {absent}"
    return ConfigError(msg, fix=fix, packages=value)
