"""Dagster jobs."""

from kpipe_platform.jobs.pauses import PauseConfig, pause_job
from kpipe_platform.jobs.redrive import RedriveConfig, redrive_job

__all__ = ["PauseConfig", "RedriveConfig", "pause_job", "redrive_job"]
