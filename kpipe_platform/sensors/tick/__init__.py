"""One tick of an offset sensor: reads, candidates, decision, report."""
