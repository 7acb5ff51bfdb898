"""Planning: choose the offset ranges of the next slice."""
