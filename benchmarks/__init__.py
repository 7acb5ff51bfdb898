"""Benchmarks of kpipe and its alternatives, on one broker and one Spark session.

Run ``python -m benchmarks`` (``make bench``). A case is one file in ``benchmarks/cases``; every figure is a ratio of
interleaved runs, and counts only where the topics hold every record once.
"""
