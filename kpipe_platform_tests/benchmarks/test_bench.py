"""The benchmarks measure what they say, and a figure whose records are wrong does not count."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.__main__ import FULL_RECORDS, FULL_TURNS, QUICK_RECORDS, ROOT, chosen_cases, options, publish, run
from benchmarks.cases import CASES
from benchmarks.cases.latency import Latency
from benchmarks.cases.load import ImportKpipe, Load
from benchmarks.cases.range_run import RangeRun
from benchmarks.checks import copied_problems, dead_letter_problems, enriched_problems, number_of
from benchmarks.handing_over import HandingOver
from benchmarks.measure import Bench, Better, Case, Contest, Problems, Ratio, Run, measure
from benchmarks.orders import FIELDS, VALUE_BYTES, LargeOrders, Orders
from benchmarks.report import BEGIN, END, as_json, refresh_page
from benchmarks.topics import Sources, read
from benchmarks.work import RawCopy
from kpipe_platform import JsonCodec
from kpipe_platform.codecs import DecodeFault
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

WARM_UP_TURNS = 2
# All but warm_cold, which is tried by itself: a second Spark takes a quarter of a minute to start.
RATIOS = {
    *("json_1p", "json_1p_with_source", "json_1p_over_lz4", "json_4p", "json_4p_range", "raw_1p", "raw_4p"),
    *("headers", "json_1p_loop", "at_least_once_4p", "one_record", "tick_1000", "slice_growth", "range_3"),
    *("size_1kb", "size_10kb", "size_100kb", "size_1mb", "raw_1p_of_writing", "raw_1p_of_reading"),
    *("raw_1p_with_headers", "headers_handed_over"),
}
SMALLER_IS_BETTER = {"one_record", "tick_1000", "slice_growth", "range_3"}
# Cases whose size does not follow the number of records are tried in a smaller one.
NOT_TINY = ("warm_cold", "latency", "range_100", "import_kpipe", "load_1000")
WORKER_MIB = 400
MACHINE_KEYS = {"cores", "cpu", "memory_gib", "load_before", "system", "python", "java", "versions"}


def right() -> Problems:
    return []


@dataclass
class Fake:
    """A contestant that takes as long as it is told, turn by turn."""

    name: str
    seconds: Sequence[float]
    problems: Callable[[], Problems] = right
    beside: Sequence[float] = ()
    turns: list[int] = field(default_factory=list)

    def run(self, turn: int) -> Run:
        self.turns.append(turn)
        taken = self.seconds[turn - WARM_UP_TURNS] if turn >= WARM_UP_TURNS else 1_000.0
        beside = {"rss_mib": self.beside[turn]} if self.beside else {}
        return Run(taken, 100, self.problems, {"write": taken / 2}, beside, {"p50_s": taken / 10})


def contest(*contestants: Fake, turns: int = 3, of: Literal["rate", "time"] = "rate") -> Contest:
    better: Better = "bigger" if of == "rate" else "smaller"
    ratio = Ratio("race", contestants[0].name, contestants[1].name, of=of, better=better)
    figures = {"ms_each": lambda rate: 1_000 / rate}
    return Contest("race", contestants, (ratio,), turns, WARM_UP_TURNS, figures=figures)


def nothing(_line: str) -> None:
    pass


# ------------------------------------------------------------------------------------------ the real thing


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tiny_run_finds_every_record_right_and_reports_all(
    kafka_broker: EmbeddedBroker, spark: SparkSession, tmp_path: Path
) -> None:
    del spark  # started before the benchmarks' own engine asks for one
    lines: list[str] = []

    bench = Bench(kafka_broker.bootstrap_servers, records=2_000, turns=1, warm_up_turns=0)
    cases = [case for case in CASES if case.name not in NOT_TINY]
    report = run(bench, [*cases, Latency(seconds=2), RangeRun(3)], lines.append)

    assert report["problems"] == {}
    assert set(report["machine"]) == MACHINE_KEYS
    assert report["settings"] == {"records": 2_000, "turns": 1, "quick": False}
    assert set(report["ratios"]) == RATIOS
    for ratio in report["ratios"].values():
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    assert {key for key, ratio in report["ratios"].items() if ratio["better"] == "smaller"} == SMALLER_IS_BETTER
    assert report["units"] == {"tick_1000": "ticks"}
    growth = report["ratios"]["slice_growth"]
    for name in ("worker_rss_mib", "driver_rss_mib", "jvm_rss_mib"):
        assert set(growth[name]) == {"20", "200", "2000", "20000"}
        assert all(10 < mib < 8_000 for mib in growth[name].values())
    # What is promised of any slice, and of records of any size.
    for key in ("slice_growth", "size_1kb", "size_1mb"):
        assert max(report["ratios"][key]["worker_rss_mib"].values()) <= WORKER_MIB
    figures = report["figures"]
    assert set(figures["slice_growth"]) == {"20", "200", "2000", "20000"}
    assert set(figures["tick_1000"]) == {f"partitions_{number}" for number in (1, 10, 100, 1_000)}
    assert set(figures["size_10kb"]) == {"kpipe", "structured_streaming"}
    latency = figures["latency"]["kpipe"]
    assert 0 < latency["p50_s"]["min"] <= latency["p95_s"]["min"] < 60
    assert 0 < latency["commit_p50_s"]["min"] <= latency["commit_p95_s"]["min"] < 60
    assert latency["slices"]["min"] >= 2
    assert set(report["took_s"]) == set(report["absolute"])
    rates = report["absolute"]["json_1p"]
    assert set(rates) == {
        "kpipe",
        "kpipe_with_source",
        "structured_streaming",
        "structured_streaming_lz4",
        "confluent_kafka_loop",
    }
    assert all(len(each) == 1 and each[0] > 0 for each in rates.values())
    assert set(report["steps"]["json_1p"]) == {"kpipe", "kpipe_with_source"}
    assert set(report["steps"]["json_1p"]["kpipe"]) == {"plan", "spark", "open", "write", "commit", "dagster"}
    assert any("structured_streaming" in line and "right" in line for line in lines)

    page, output = tmp_path / "benchmarks.md", tmp_path / "build/bench.json"
    page.write_text(f"{BEGIN}\n{END}\n")
    chosen = options(["--output", str(output), "--page", str(page)])
    assert publish(report, chosen, Console(file=io.StringIO())) == 0
    assert json.loads(output.read_text()) == report
    assert "| `json_1p` | kpipe |" in page.read_text()
    assert "| `slice_growth` | worker_rss_mib | 20: " in page.read_text()


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_cold_run_is_right_and_counts_its_start(kafka_broker: EmbeddedBroker, spark: SparkSession) -> None:
    del spark
    (case,) = (case for case in CASES if case.name == "warm_cold")

    report = run(Bench(kafka_broker.bootstrap_servers, records=1, turns=1, warm_up_turns=0), [case], nothing)

    assert report["problems"] == {}
    assert report["ratios"]["warm_cold"]["min"] > 1.5
    assert report["ratios"]["warm_cold"]["better"] == "bigger"


def test_a_code_location_of_kafka_assets_loads_like_one_of_plain_assets() -> None:
    report = run_without_a_broker([Load(21), ImportKpipe()])

    assert report["problems"] == {}
    # A kpipe asset costs more than a plain one, and not several times as much; most of both is imports here.
    assert 0.2 < report["ratios"]["load_21"]["median"] < 5
    assert report["ratios"]["load_21"]["better"] == "smaller"
    assert set(report["steps"]["load_21"]["kafka_assets"]) == {"import", "make", "load"}
    imports = report["figures"]["import_kpipe"]["kpipe_platform"]
    assert 0 < imports["import_s"]["min"] < 0.3
    assert imports["import_s"]["min"] < imports["all_names_s"]["min"]


def run_without_a_broker(cases: Sequence[Case]) -> dict[str, Any]:
    bench, results = Bench("nowhere:1", records=1, turns=1, warm_up_turns=0), []
    for case in cases:
        with case.open(bench, Sources("nowhere:1")) as contest:
            results.append(measure(contest, nothing))
    return as_json({}, {}, results)


@pytest.mark.broker
@pytest.mark.spark
def test_records_handed_over_without_their_headers_do_not_count(
    kafka_broker: EmbeddedBroker, spark: SparkSession
) -> None:
    orders = Orders(7)
    with Sources(kafka_broker.bootstrap_servers) as sources:
        bare = sources.topic(orders)
        said_to_have_some = RawCopy(kafka_broker.bootstrap_servers, bare, orders, headers=True)
        run = HandingOver("handing_over", said_to_have_some, spark).run(0)

        assert run.problems() == [f"{bare}: (7, 0) records and headers came, of (7, 14)"]


def test_a_later_case_of_full_size_warms_up_no_more() -> None:
    bench = Bench("nowhere:1", records=1, turns=5, warm_up_turns=2)

    assert bench.short_warm_up == 1
    assert replace(bench, first=False).short_warm_up == 0
    assert replace(bench, first=False, quick=True).short_warm_up == 1


@pytest.mark.broker
@pytest.mark.parametrize("headers", [False, True])
def test_orders_are_in_their_partitions_in_their_order(kafka_broker: EmbeddedBroker, headers: bool) -> None:
    servers, orders = kafka_broker.bootstrap_servers, Orders(10_007)
    with Sources(servers) as sources:
        topic = sources.topic(orders, partitions=4, headers=headers)
        assert sources.topic(Orders(10_007), partitions=4, headers=headers) == topic
        assert sources.topic(orders, partitions=4, headers=not headers) != topic
        found: dict[int | None, list[int | None]] = {}
        for message in read(servers, topic):
            found.setdefault(message.partition(), []).append(number_of(message.value()))
        assert copied_problems(servers, topic, orders, 4, headers=headers) == []
    assert found == {number: list(range(number, orders.count, 4)) for number in range(4)}


@pytest.mark.broker
def test_a_topic_that_is_not_as_it_should_be_is_found_out(
    kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, produce: Produce
) -> None:
    orders = Orders(2_000)
    topic = kafka_topic("enriched")
    numbers = [n for n in range(orders.count) if not orders.is_bad(n) and n != 17]
    numbers[5], numbers[6] = numbers[6], numbers[5]
    outputs = [(orders.customer(n), orders.enriched(n)) for n in [*numbers, 1_234]]
    outputs[100] = (outputs[100][0], {**outputs[100][1], "gross": -1.0})
    outputs += [("customer", orders.enriched(999)), ("customer", "no order")]
    produce(topic, outputs)
    # What is not committed is not there.
    produce(topic, [(orders.customer(17), orders.enriched(17))], transaction="abort")

    found = enriched_problems(kafka_broker.bootstrap_servers, topic, orders)

    assert sorted(found) == [
        f"{topic}: 1 records are missing",
        f"{topic}: 1 records are out of order",
        f"{topic}: 1 records are there again",
        f"{topic}: 1 records have another key, value or headers than they should",
        f"{topic}: 2 records are no order that should be there",
    ]


@pytest.mark.broker
def test_a_copy_that_is_not_what_it_was_is_found_out(
    kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, produce: Produce
) -> None:
    orders, servers = Orders(1_000), kafka_broker.bootstrap_servers
    topic = kafka_topic("copied")

    def copy(number: int, **changes: Any) -> dict[str, Any]:
        headers = orders.headers(number)
        return {"key": orders.customer(number), "value": orders.value(number), "headers": headers, **changes}

    # From two partitions, each in its order.
    even, odd = list(range(0, 1_000, 2)), list(range(1, 1_000, 2))
    produce(topic, [copy(number) for number in [*even[:100], *odd[:300], *even[100:], *odd[300:]]])
    assert copied_problems(servers, topic, orders, 2, headers=True) == []
    # Of one partition they would not be: at each change from even to odd and back.
    assert copied_problems(servers, topic, orders, 1, headers=True) == [f"{topic}: 3 records are out of order"]
    assert copied_problems(servers, topic, orders, 2) == [
        f"{topic}: 1,000 records have another key, value or headers than they should"
    ]

    produce(topic, [copy(7), copy(999, key="other"), {"value": b"no order"}, {"value": b"order 1000 is no JSON"}])
    assert sorted(copied_problems(servers, topic, orders, 2, headers=True)) == [
        f"{topic}: 1 records have another key, value or headers than they should",
        f"{topic}: 2 records are no order that should be there",
        f"{topic}: 2 records are there again",
    ]


@pytest.mark.broker
def test_every_bad_order_must_be_dead_lettered_once(
    kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, produce: Produce
) -> None:
    orders = Orders(2_000)
    topic = kafka_topic("letters")

    def letter(offset: int, partition: int = 0) -> dict[str, Any]:
        where = {"__connect.errors.offset": offset, "__connect.errors.partition": partition}
        return {"value": b"{}", "headers": [(name, str(value).encode()) for name, value in where.items()]}

    produce(topic, [letter(999), letter(1_999)])
    assert dead_letter_problems(kafka_broker.bootstrap_servers, topic, orders) == []

    produce(topic, [letter(999)])
    (problem,) = dead_letter_problems(kafka_broker.bootstrap_servers, topic, orders)
    assert problem == f"{topic}: 3 dead letters of 2 records, where 2 orders are bad"

    # Order 999 of four partitions is the 250th of the last one.
    topic = kafka_topic("letters")
    produce(topic, [letter(249, 3), letter(499, 3)])
    assert dead_letter_problems(kafka_broker.bootstrap_servers, topic, orders, 4) == []
    assert dead_letter_problems(kafka_broker.bootstrap_servers, topic, orders) != []


# ------------------------------------------------------------------------------------------------ measuring


def test_ratios_are_taken_turn_by_turn_and_the_warm_up_does_not_count() -> None:
    ours, theirs = Fake("ours", [1.0, 2.0, 4.0]), Fake("theirs", [2.0, 2.0, 2.0])

    result = measure(contest(ours, theirs), nothing)

    assert result.rates == {"ours": [100.0, 50.0, 25.0], "theirs": [50.0, 50.0, 50.0]}
    spread = result.ratios["race"]
    assert (spread.min, spread.median, spread.max) == (0.5, 1.0, 2.0)
    assert result.steps["ours"] == {"write": 1.0}
    assert ours.turns == theirs.turns == list(range(WARM_UP_TURNS + 3))


def test_time_over_time_is_smaller_where_the_first_is_faster() -> None:
    ours, theirs = Fake("ours", [1.0, 2.0, 4.0]), Fake("theirs", [2.0, 2.0, 2.0])

    result = measure(contest(ours, theirs, of="time"), nothing)

    spread = result.ratios["race"]
    assert (spread.min, spread.median, spread.max) == (0.5, 1.0, 2.0)
    assert as_json({}, {}, [result])["ratios"]["race"]["better"] == "smaller"


def test_what_stands_beside_a_ratio_is_of_the_first_measured_turn() -> None:
    small = Fake("10", [1.0] * 2, beside=(900, 900, 120.04, 300))
    large = Fake("100", [1.0] * 2, beside=(900, 900, 140, 300))

    result = measure(contest(large, small, turns=2), nothing)

    ratio = as_json({}, {}, [result])["ratios"]["race"]
    assert ratio == {"min": 1, "median": 1, "max": 1, "better": "bigger", "rss_mib": {"100": 140, "10": 120.0}}


def test_absolute_figures_are_of_all_measured_turns_and_count_where_the_records_are_right() -> None:
    ours, theirs = Fake("ours", [1.0, 2.0, 4.0]), Fake("theirs", [2.0] * 3, lambda: ["one is missing"])

    found = as_json({}, {}, [measure(contest(ours, theirs), nothing)])["figures"]

    assert found == {
        "race": {
            "ours": {
                "ms_each": {"min": 10, "median": 20, "max": 40},
                "p50_s": {"min": 0.1, "median": 0.2, "max": 0.4},
            }
        }
    }


def test_contestants_take_turns_in_alternating_order() -> None:
    order: list[str] = []

    class Noted(Fake):
        def run(self, turn: int) -> Run:
            order.append(self.name)
            return super().run(turn)

    measure(contest(Noted("a", [1.0] * 4), Noted("b", [1.0] * 4), turns=2), nothing)

    assert order == ["a", "b", "b", "a"] * ((WARM_UP_TURNS + 2) // 2)


@pytest.mark.parametrize("turn_of_the_problem", range(WARM_UP_TURNS + 2))
def test_a_wrong_count_in_any_turn_makes_the_figure_not_count(turn_of_the_problem: int, tmp_path: Path) -> None:
    looked: list[int] = []

    def one_missing() -> Problems:
        looked.append(len(looked))
        return ["out: 1 records are missing"] if looked[-1] == turn_of_the_problem else []

    lines: list[str] = []
    result = measure(contest(Fake("ours", [1.0, 1.0], one_missing), Fake("theirs", [1.0, 1.0]), turns=2), lines.append)

    assert result.ratios == {}
    assert result.problems == {"ours": [f"turn {turn_of_the_problem}: out: 1 records are missing"]}
    assert sum("WRONG: out: 1 records are missing" in line for line in lines) == 1


def test_figures_that_do_not_count_fail_the_run_and_leave_the_page_alone(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    chosen = options(["--output", str(tmp_path / "bench.json"), "--page", str(page)])
    report = {
        "ratios": {},
        "absolute": {"race": {"ours": [100]}},
        "units": {},
        "steps": {},
        "figures": {},
        "problems": {"race": {"ours": ["turn 1: out: 1 records are missing"]}},
    }
    shown = io.StringIO()

    assert publish(report, chosen, Console(file=shown, width=200)) == 1
    assert "race: the figures of ours do not count: turn 1: out: 1 records are missing" in shown.getvalue()
    assert not page.exists()


# -------------------------------------------------------------------------------------- records, page, options


def test_orders_are_of_the_size_and_the_kind_that_they_say() -> None:
    orders, codec = Orders(1_000_000), JsonCodec(FIELDS)

    for number in (0, 7, 998, 12_345, 999_998):
        value = orders.value(number)
        assert len(value) == VALUE_BYTES
        decoded = codec.decode(value)
        assert orders.enriched(number) == {
            **{name: decoded[name] for name in ("order_id", "customer", "country")},
            "gross": decoded["amount"] * 1.2,
        }
    assert orders.bad == 1_000
    bad = orders.value(999)
    assert orders.is_bad(999)
    assert len(bad) == VALUE_BYTES
    with pytest.raises(DecodeFault):
        codec.decode(bad)


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000, 1_000_000])
def test_large_orders_are_of_their_size_and_cannot_be_compressed_away(size: int) -> None:
    orders = LargeOrders(20, size)

    values = [orders.value(number) for number in range(orders.count)]

    assert {len(value) for value in values} == {size}
    assert [number_of(value) for value in values] == list(range(orders.count))
    assert json.loads(values[7])["order_id"] == 7
    assert not any(orders.is_bad(number) for number in range(orders.count))
    assert orders.bad == 0
    batch = b"".join(values[: max(100_000 // size, 1)])
    assert len(pa.compress(batch, codec="lz4", asbytes=True)) > 0.95 * len(batch)


def test_the_number_of_an_order_is_what_its_value_says() -> None:
    orders = Orders(1_000)
    for number in (0, 7, 999):
        assert number_of(orders.value(number)) == number
        assert orders.key(number) == orders.customer(number).encode()
    # Customers, amounts and countries repeat, and numbers do not.
    for number in (7, 100_007, 12_345_678):
        assert number_of(orders.enriched_json(number)) == number
        assert json.loads(orders.enriched_json(number)) == orders.enriched(number)
        assert json.loads(orders.value(number)).items() >= {"order_id": number, "amount": orders.amount(number)}.items()
    assert number_of(None) is number_of(b"") is number_of(b"no order") is None


def report_of(median: float) -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "some cpu", "memory_gib": 8.0, "python": "3.11", "java": "17", "versions": {"a": "1"}}
    return {
        "machine": machine,
        "settings": {"records": 1_000, "turns": 3},
        "ratios": {
            "race": {"min": 1.0, "median": median, "max": 9.0, "better": "bigger"},
            "wait": {"min": 0.5, "median": 0.6, "max": 0.7, "better": "smaller", "rss_mib": {"10": 99.5}},
        },
        "absolute": {"race": {"ours": [3_000, 1_000, 2_000]}, "wait": {"ours": [1.25]}},
        "units": {"wait": "ticks"},
        "figures": {"wait": {"ours": {"p50_s": {"min": 0.25, "median": 0.5, "max": 1234.5}}}},
        "steps": {"race": {"ours": {"write": 0.5}}},
        "problems": {},
    }


def test_the_page_is_refreshed_between_its_markers_only(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    refresh_page(report_of(1.5), page)
    refresh_page(report_of(2.5), page)

    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "| `race` | 1.00 | 2.50 | 9.00 | bigger |" in text
    assert "| `race` | ours | 2,000 | 1,000 to 3,000 | records |" in text
    assert "| `wait` | ours | 1.25 | 1.25 to 1.25 | ticks |" in text
    assert "| `wait` | rss_mib | 10: 100 |" in text
    assert "| `wait` | ours | p50_s | 0.25 | 0.5 | 1,234 |" in text
    assert "](benchmarks.svg)" in text
    assert (tmp_path / "benchmarks.svg").is_file()
    assert "old" not in text
    assert "1.50" not in text


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("something else\n")

    with pytest.raises(ValueError, match="lacks the markers"):
        refresh_page(report_of(1.0), page)


def test_quick_by_option_or_environment_and_only_a_full_run_refreshes_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QUICK", raising=False)
    full = options([])
    assert (full.records, full.repetitions, full.page) == (FULL_RECORDS, FULL_TURNS, ROOT / "docs/benchmarks.md")
    assert (options(["--quick"]).records, options(["--quick"]).page) == (QUICK_RECORDS, None)
    assert options(["--records", "500"]).page is None
    monkeypatch.setenv("QUICK", "1")
    assert options([]).records == QUICK_RECORDS
    assert options(["--records", "500"]).records == 500
    monkeypatch.setenv("QUICK", "0")
    assert options([]).records == FULL_RECORDS


def test_a_quick_run_leaves_out_what_takes_its_time_unless_it_is_asked_for() -> None:
    def names(*arguments: str) -> list[str]:
        return [case.name for case in chosen_cases(options(arguments))]

    everything = [case.name for case in CASES]
    assert len(set(everything)) == len(everything)
    assert names("--records", "5") == everything
    assert set(everything) - set(names("--quick")) == {
        *("limit", "latency", "range_100", "import_kpipe", "load_1000"),
        *("size_1kb", "size_10kb", "size_100kb", "size_1mb"),
    }
    assert names("--quick", "--case", "range_100") == ["range_100"]
