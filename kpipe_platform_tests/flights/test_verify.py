from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.flights.seed import _create_topics
from examples.flights.verify import Figures, count_outcomes, figures_of
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.plugin import Produce

GOOD = Figures(
    records=10,
    enriched=8,
    dead_letters=2,
    lost=0,
    duplicated=0,
    reasons={("missing_field", "dep_time"): 2},
    table_rows=8,
)


def _output(offset: int | None, **more: Any) -> dict[str, Any]:
    headers = [] if offset is None else [("kpipe.source", f"flights/0/{offset}".encode())]
    return {"value": b"{}", "headers": [("carrier", b"UA"), *headers], **more}


def _letter(offset: int, *, topic: str = FLIGHTS, field: str = "dep_time") -> dict[str, Any]:
    original = {"topic": topic, "partition": 0, "offset": offset}
    return {"value": json.dumps({"original": original, "fault": {"kind": "missing_field", "field": field}}).encode()}


def _flights(connection: ConnectionSettings, produce: Produce, number: int) -> None:
    _create_topics(connection)
    produce(FLIGHTS, [{"value": b"{}", "partition": 0}] * number)


@pytest.mark.broker
def test_every_flight_is_accounted_for(connection: ConnectionSettings, produce: Produce, tmp_path: Path) -> None:
    _flights(connection, produce, 4)
    produce(ENRICHED, [_output(0), _output(2)], transaction="commit")
    produce(ENRICHED, [_output(1)], transaction="abort")
    produce(DEAD_LETTERS, [_letter(1), _letter(3)])
    for start in (0, 1):
        folder = tmp_path / "delays" / f"slice={start}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [start]}), folder / "part.parquet")
    outcomes = count_outcomes(connection)
    assert outcomes.read == 8
    found = figures_of(outcomes, connection, groups={"nobody": FLIGHTS}, table=tmp_path / "delays")
    assert found == Figures(
        records=4,
        enriched=2,
        dead_letters=2,
        lost=0,
        duplicated=0,
        strays=0,
        reasons={("missing_field", "dep_time"): 2},
        lag=4,
        table_rows=2,
    )


@pytest.mark.broker
def test_lost_and_duplicated_flights_are_seen(connection: ConnectionSettings, produce: Produce, tmp_path: Path) -> None:
    _flights(connection, produce, 6)
    # 0 twice as an output, 1 both ways, 2 twice as a dead letter, 3 and 4 nowhere, 5 once; two of no flight.
    produce(ENRICHED, [_output(0), _output(0), _output(1), _output(5), _output(None), _output(99)])
    produce(DEAD_LETTERS, [_letter(1), _letter(2), _letter(2, field="carrier"), _letter(3, topic="others")])
    found = figures_of(count_outcomes(connection), connection, groups={}, table=tmp_path / "nothing")
    assert (found.records, found.enriched, found.dead_letters) == (6, 6, 4)
    assert (found.lost, found.duplicated, found.strays) == (2, 3, 3)
    assert found.reasons == {("missing_field", "dep_time"): 3, ("missing_field", "carrier"): 1}
    assert found.table_rows == 0


def test_good_figures_have_no_problems() -> None:
    assert GOOD.problems(records=10, dead_letters=2) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"records": 11}, "records in flights: 11, expected 10"),
        ({"enriched": 7}, "records in flights.enriched: 7, expected 8"),
        ({"dead_letters": 3}, "records in flights.dlq: 3, expected 2"),
        ({"lost": 1}, "lost flights: 1, expected 0"),
        ({"duplicated": 1}, "duplicated flights: 1, expected 0"),
        ({"strays": 1}, "records without a flight: 1, expected 0"),
        ({"lag": 5}, "lag of the consumer groups: 5, expected 0"),
        ({"table_rows": 9}, "rows in the table of delays: 9, expected 8"),
        ({"reasons": {("missing_field", "carrier"): 2}}, "dead letters for a missing dep_time: 0, expected 2"),
    ],
)
def test_each_wrong_figure_is_named(change: dict[str, Any], problem: str) -> None:
    found = Figures(**{**vars(GOOD), **change})
    assert found.problems(records=10, dead_letters=2) == [problem]
