"""Java, jars and child processes: what the embedded broker and local Spark servers stand on.

No Dagster and no pyspark import here: pyspark's folder is only looked up, for the jars that it ships.
"""
