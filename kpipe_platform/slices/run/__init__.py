"""Which slices a run takes, of which partitions, in which order, and until when."""
