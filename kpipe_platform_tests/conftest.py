"""Settings of the whole suite: the order of files, who runs which, and hypothesis."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest

from kpipe_platform_tests.order import slowest_first, uses_spark

hypothesis.settings.register_profile(
    "kpipe",
    deadline=None,  # a loaded machine is no failure
    database=None,  # leaves no folder behind
    derandomize=True,  # the same examples in every run
)
hypothesis.settings.load_profile("kpipe")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Under ``--dist loadfile``: whole files to a worker, slowest first, and one worker without Spark."""
    from kpipe_platform_tests.scheduling import FileScheduling

    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files, and refuse a test that starts Spark in a file that does not say so."""
    unmarked = {
        item.path.name for item in items if "spark" in getattr(item, "fixturenames", ()) and not uses_spark(item.path)
    }
    if unmarked:
        msg = f"{', '.join(sorted(unmarked))}: uses the spark fixture without the mark pytest.mark.spark"
        raise pytest.UsageError(msg)
    if not config.getoption("random_order_enabled", False):
        slowest_first(items)
