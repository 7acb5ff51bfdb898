"""Reading Kafka offset ranges as DataFrames: slices, decoding, and tables."""
