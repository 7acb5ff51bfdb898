"""Partition ownership: which partitions this deployment processes when several deployments share an asset's topics."""
