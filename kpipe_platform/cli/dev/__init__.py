"""`kpipe dev`: start and stop a broker, Spark and the Dagster UI together."""
