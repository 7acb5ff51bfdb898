"""Partitions of Kafka topics in Dagster: definition, owners, pauses and state."""
