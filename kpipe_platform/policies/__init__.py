"""Fault and retry policies. They are pure; clock, sleep and randomness are injected."""
