"""Columns to Kafka: rows, the writer's job, and its outcome."""
