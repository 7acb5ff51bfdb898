"""A Spark Connect server on this machine: its process, its service, and its executors."""
