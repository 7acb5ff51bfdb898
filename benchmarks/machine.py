"""The machine and the versions that figures come from."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kpipe_platform.jvm.jars import KAFKA_VERSION
from kpipe_platform.jvm.java import find_java

_PACKAGES = ("kpipe-platform", "dagster", "pyspark", "pyarrow", "confluent-kafka")


def describe_machine() -> dict[str, Any]:
    """Cores, processor, memory, load, and versions of what was measured."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": cores,
        "cpu": _cpu(),
        "memory_gib": round(memory / 2**30, 1),
        # Of the minute before: more than a little of it means that others worked here too.
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": find_java().version,
        "versions": {**{name: version(name) for name in _PACKAGES}, "kafka": KAFKA_VERSION},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
