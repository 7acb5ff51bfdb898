"""The flights platform: a year of flights through Kafka, Spark and Dagster, as a user would write it.

`kpipe_platform.definitions` puts it together, and ``kpipe dev`` shows it in Dagster's UI. In a clone of the project,
``examples/flights`` fills its topics, runs all of it on a broker of its own (``make run``), and counts the records.
"""
