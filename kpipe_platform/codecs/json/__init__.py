"""The JSON codec, and the rules of Spark's parser that it follows."""
