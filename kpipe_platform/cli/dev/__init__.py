"""`kpipe dev`: a broker, Spark and the Dagster UI, started and stopped together."""
