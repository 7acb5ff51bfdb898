"""Kafka connections: typed settings, clients, and broker calls with deadlines and typed errors."""
