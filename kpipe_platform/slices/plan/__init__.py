"""Which offsets the next slice has."""
