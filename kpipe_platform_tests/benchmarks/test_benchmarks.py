"""`python -m benchmarks`: its cases, its baseline, and one tiny case from source topic to page."""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
from copy import deepcopy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import benchmarks
from benchmarks.__main__ import BASELINE, check, chosen_cases, options, publish, run
from benchmarks.baseline import read_baseline
from benchmarks.cases import CASES
from benchmarks.checks import copied_problems
from benchmarks.measure import Bench
from benchmarks.orders import Orders
from benchmarks.report import BEGIN, END
from benchmarks.topics import Sources
from kpipe_platform.testing.broker.embedded import EmbeddedBroker


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_every_case_can_be_chosen_and_every_module_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUICK", raising=False)
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for name in names:
        assert [case.name for case in chosen_cases(options(["--quick", "--case", name]))] == [name]
    assert [case.name for case in chosen_cases(options([]))] == names
    assert {case.name for case in chosen_cases(options(["--quick"]))} < set(names)
    for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_a_ratio_that_is_past_the_committed_baseline_fails() -> None:
    before, quick = read_baseline(BASELINE), options(["--quick", "--check"])
    assert check(before, before, quick, console()) == 0
    for key, ratio in before["ratios"].items():
        now = deepcopy(dict(before))
        factor = 0.1 if ratio["better"] == "bigger" else 10.0
        now["ratios"][key].update({name: ratio[name] * factor for name in ("min", "median", "max")})
        assert check(now, before, quick, console()) == 1, key


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_tiny_case_finds_every_record_right_and_reports_it(
    kafka_broker: EmbeddedBroker, spark: SparkSession, tmp_path: Path
) -> None:
    del spark  # started before the benchmarks' own engine asks for one
    servers, orders = kafka_broker.bootstrap_servers, Orders(7)
    with Sources(servers) as sources:
        topic = sources.topic(orders)
        assert copied_problems(servers, topic, orders, 1) == []
        assert copied_problems(servers, topic, orders, 1, headers=True) != []
        assert copied_problems(servers, topic, Orders(8), 1) != []

    page, output = tmp_path / "benchmarks.md", tmp_path / "build/bench.json"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    chosen = options(["--case", "json_1p", "--output", str(output), "--page", str(page)])
    report = run(Bench(servers, records=2_000, turns=1, warm_up_turns=0), chosen_cases(chosen), lambda _: None)

    assert report["problems"] == {}
    assert set(report["ratios"]) >= {"json_1p", "json_1p_with_source", "json_1p_loop"}
    for ratio in report["ratios"].values():
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    assert publish(report, chosen, console()) == 0
    assert json.loads(output.read_text()) == report
    text = page.read_text()
    assert "| `json_1p` | kpipe |" in text
    assert (text.startswith("before\n"), text.endswith("after\n"), "old" in text) == (True, True, False)
