"""Which partitions this deployment may work on, where several deployments share the topics of one asset."""
