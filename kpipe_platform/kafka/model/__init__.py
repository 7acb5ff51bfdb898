"""Plain values: records, offset ranges, sizes, and the text beside a committed offset."""
