"""`python -m benchmarks`: its cases, its baseline, and one tiny case from source topic to page."""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import benchmarks
from benchmarks.__main__ import BASELINE, check, chosen_cases, main, options, publish, run
from benchmarks.baseline import read_baseline
from benchmarks.cases import CASES
from benchmarks.checks import copied_problems
from benchmarks.measure import Bench, Contest, Problems, Ratio, Run, measure
from benchmarks.orders import Orders
from benchmarks.report import BEGIN, END, as_json
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


def test_the_committed_baseline_reads_and_a_ratio_that_is_past_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, quick = read_baseline(BASELINE), options(["--quick", "--check"])
    assert before["settings"] == {"records": quick.records, "turns": quick.repetitions, "quick": True}
    assert check(before, before, quick, console()) == 0
    for key, ratio in before["ratios"].items():
        for factor, worse_where in ((0.1, "bigger"), (10.0, "smaller")):
            now = deepcopy(dict(before))
            now["ratios"][key].update({name: ratio[name] * factor for name in ("min", "median", "max")})
            assert check(now, before, quick, console()) == (ratio["better"] == worse_where), key
    missing = {**before, "ratios": dict(list(before["ratios"].items())[1:])}
    assert check(missing, before, quick, console()) == 1
    other_size = {**before, "settings": {**before["settings"], "records": 5}}
    assert check(other_size, before, quick, console()) == 1

    assert main(["--quick", "--check", "--baseline", str(tmp_path / "none.json")]) == 1
    assert "make bench QUICK=1 BENCH_ARGS=--write-baseline" in " ".join(capsys.readouterr().out.split())


@dataclass
class Fake:
    """A contestant that takes a second more each turn, and one of whose records is missing in one of them."""

    name: str
    wrong: int = -1

    def run(self, turn: int) -> Run:
        def problems() -> Problems:
            return ["one is missing"] if turn == self.wrong else []

        return Run(1.0 + turn, 100, problems)


def test_figures_whose_records_are_wrong_do_not_count(tmp_path: Path) -> None:
    def measured(wrong: int) -> dict[str, Any]:
        contestants = (Fake("ours", wrong), Fake("theirs"))
        contest = Contest("race", contestants, (Ratio("race", "ours", "theirs"),), turns=2, warm_up_turns=1)
        return as_json({}, {}, [measure(contest, lambda _: None)])

    page = tmp_path / "page.md"
    chosen = options(["--output", str(tmp_path / "bench.json"), "--page", str(page)])
    assert measured(-1)["ratios"]["race"] == {"min": 1, "median": 1, "max": 1, "better": "bigger"}
    for turn in range(3):
        report = measured(turn)
        assert report["ratios"] == {}
        assert report["problems"] == {"race": {"ours": [f"turn {turn}: one is missing"]}}
        assert publish(report, chosen, console()) == 1
    assert not page.exists()


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
