"""Write the output of a slice and commit its offsets."""
