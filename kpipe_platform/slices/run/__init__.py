"""Schedule the slices of a run: which partitions, in which order, and until when."""
