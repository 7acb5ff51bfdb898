"""All code that uses Spark: sessions, the slice reader, stages, and the writer.

Only the DataFrame API that Spark Connect also offers is used, so that every engine runs the same code.
"""
