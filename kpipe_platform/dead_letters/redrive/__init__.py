"""Sending dead letters back to where their records came from, each exactly once."""
