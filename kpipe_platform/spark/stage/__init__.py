"""Support for stages: input and output forms, rules, and ``map_records``."""
