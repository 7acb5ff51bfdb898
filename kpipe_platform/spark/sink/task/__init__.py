"""The part of the writer that runs in a Spark task. Does not import Spark."""
