"""Dagster resources on top of the Kafka and Spark layers. Construction of a resource does no I/O."""
