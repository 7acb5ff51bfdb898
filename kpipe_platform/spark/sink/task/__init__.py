"""The writer's side in a Spark task. Imports no Spark."""
