"""Transactions that commit a slice's offsets."""
