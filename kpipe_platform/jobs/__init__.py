"""Dagster jobs."""

from kpipe_platform.jobs.redrive import RedriveConfig, redrive_job

__all__ = ["RedriveConfig", "redrive_job"]
