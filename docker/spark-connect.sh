#!/usr/bin/env bash
# A Spark Connect server with the Kafka connector, from the installed pyspark and the jars in kpipe's cache.
#
#   KPIPE_SPARK_MASTER        where jobs run (local[*])
#   KPIPE_SPARK_MEMORY        heap of the server (2g)
#   KPIPE_SPARK_CONNECT_PORT  port that it listens on (15002)
set -euo pipefail

jars=$(python -c '
from importlib.metadata import version

from kpipe_platform.jvm.jars import spark_connector_jars

print(",".join(str(jar) for jar in spark_connector_jars(version("pyspark"))))
')
# Workers run the writer, so they need the packages of this very Python.
PYSPARK_PYTHON=$(python -c 'import sys; print(sys.executable)')
export PYSPARK_PYTHON

exec spark-submit \
  --class org.apache.spark.sql.connect.service.SparkConnectServer \
  --name "kpipe Spark Connect" \
  --master "${KPIPE_SPARK_MASTER:-local[*]}" \
  --driver-memory "${KPIPE_SPARK_MEMORY:-2g}" \
  --jars "$jars" \
  --conf spark.connect.grpc.binding.port="${KPIPE_SPARK_CONNECT_PORT:-15002}" \
  --conf spark.sql.session.timeZone=UTC \
  --conf spark.ui.enabled=false \
  spark-internal
