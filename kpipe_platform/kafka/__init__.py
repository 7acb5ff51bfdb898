"""Kafka without Dagster and without Spark: records, connection, topics, offsets and slices, transactions."""
