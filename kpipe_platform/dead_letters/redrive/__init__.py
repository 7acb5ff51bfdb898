"""Send the records of dead letters back to their original topics, each exactly once."""
