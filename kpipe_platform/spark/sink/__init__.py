"""Writing a stage's output to Kafka: the writer's rows, its Spark job, and its outcome."""
