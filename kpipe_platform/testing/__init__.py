"""A real Kafka broker for tests and for a developer's machine, and helpers to fill and read its topics.

`kpipe_platform.testing.broker.embedded` has the broker, `kpipe_platform.testing.records` plain functions for records,
`kpipe_platform.testing.plugin` the pytest fixtures over both.
"""
