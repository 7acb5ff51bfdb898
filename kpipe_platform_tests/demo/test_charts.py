from __future__ import annotations

import importlib.util

import pytest

from kpipe_platform.demo.charts import ChartedIOManager, bar_chart
from kpipe_platform.demo.platform import resources
from kpipe_platform.errors import EnvironmentSetupError


def test_the_chart_is_a_png() -> None:
    picture = bar_chart(["AirTran", "Virgin America"], [3.5, -9.0], title="Median")
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 2_000


def test_without_matplotlib_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = resources({})["charted_tables"]
    assert isinstance(manager, ChartedIOManager)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentSetupError, match=r"pip install 'kpipe-platform\[demo\]'"):
        next(manager.handle_output(None, None))  # type: ignore[arg-type]  # it must not even look at them
