"""Plain values: records, offset ranges, slices, record sizes, and commit metadata."""
