"""JSON: the codec, and the rules of Spark's parser that it follows."""
