"""The flights platform: a year of flights through Kafka, Spark and Dagster, as a user would write it.

``python -m kpipe_platform.demo run`` runs all of it on a broker of its own; ``kpipe dev`` shows it in Dagster's UI.
"""
