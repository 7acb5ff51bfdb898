"""Read dead letters of kpipe and of other tools."""
