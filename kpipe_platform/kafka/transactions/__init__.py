"""Transactions that move a slice's offsets."""
