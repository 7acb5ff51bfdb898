"""A real Kafka cluster in child processes: settings, data folder, nodes, and the service behind `kpipe broker`."""
