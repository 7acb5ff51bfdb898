"""Dagster resources over the Kafka and Spark layers. None of them does I/O when it is constructed."""
