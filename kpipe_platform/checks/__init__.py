"""Asset checks of Kafka assets."""

from kpipe_platform.checks.rules import rule_checks

__all__ = ["rule_checks"]
