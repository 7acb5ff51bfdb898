"""Build the dead letters of failed records, within the size limit of the dead-letter topic."""
