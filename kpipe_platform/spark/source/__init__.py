"""Kafka to columns: reading ranges, decoding, tables."""
