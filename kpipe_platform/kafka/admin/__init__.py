"""Kafka administration: topics, consumer groups, and retention."""
