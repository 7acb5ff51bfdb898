"""Everything that touches Spark: session, slice reader, acked writer.

Only the DataFrame API that Spark Connect also offers is used, so that every engine runs the same code.
"""
