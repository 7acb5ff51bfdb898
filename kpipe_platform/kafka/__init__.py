"""Kafka access without Dagster or Spark: records, connections, topics, offsets, slices, and transactions."""
