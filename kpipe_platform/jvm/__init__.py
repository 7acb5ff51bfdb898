"""Java, jars and child processes for the embedded broker and local Spark servers.

This package imports neither Dagster nor pyspark. It only locates pyspark's folder, for the jars that pyspark ships.
"""
