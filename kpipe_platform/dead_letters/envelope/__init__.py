"""The envelope of a dead letter, and the headers that kpipe adds."""
