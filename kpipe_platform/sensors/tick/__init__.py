"""One tick of an offset sensor: broker reads, candidates, decision and report."""
