"""Asset checks of Kafka assets."""

from kpipe_platform.checks.contiguity import offset_contiguity_check
from kpipe_platform.checks.dead_letter_ratio import dead_letter_ratio_check
from kpipe_platform.checks.lag import lag_check
from kpipe_platform.checks.retention import retention_check
from kpipe_platform.checks.rules import rule_checks

__all__ = [
    "dead_letter_ratio_check",
    "lag_check",
    "offset_contiguity_check",
    "retention_check",
    "rule_checks",
]
