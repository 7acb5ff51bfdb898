"""A real schema registry in a child process."""
