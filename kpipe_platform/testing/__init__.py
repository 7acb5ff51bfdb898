"""A real Kafka broker for tests and for a developer's machine, and helpers to fill and read its topics.

`kpipe_platform.testing.broker.embedded` contains the broker, `kpipe_platform.testing.records` contains functions to
write and read records, and `kpipe_platform.testing.plugin` contains pytest fixtures for both.
"""
