"""The Avro codec: Spark's own functions for columns, and fastavro for single records."""
