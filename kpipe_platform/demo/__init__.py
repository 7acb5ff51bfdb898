"""The flights demo: a year of flights through Kafka, Spark and Dagster, as a user would write it.

`kpipe_platform.definitions` defines it, and ``kpipe dev`` opens it in Dagster's UI. In a clone of the project,
``examples/flights`` fills its topics, runs it on a separate broker (``make run``), and counts the records.
"""
