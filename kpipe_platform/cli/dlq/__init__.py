"""`kpipe dlq`: dead letters, listed, counted and redriven."""
