"""`kpipe dlq`: list, count, show and redrive dead letters."""
