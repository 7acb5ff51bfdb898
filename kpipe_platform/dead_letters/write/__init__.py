"""From a failed record to the dead letter that fits its topic."""
