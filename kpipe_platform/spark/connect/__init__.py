"""A Spark Connect server of this machine: its process, its service, its executors."""
