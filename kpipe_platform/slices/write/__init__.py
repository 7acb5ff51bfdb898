"""How the output of a slice is written, and its offsets with it."""
