from __future__ import annotations

import dagster as dg
import pytest
from typer.testing import CliRunner

from examples.flights import __main__ as main
from examples.flights.work import kpipe_error
from kpipe_platform.demo import data
from kpipe_platform.demo.topics import FLIGHTS
from kpipe_platform.errors import TopicNotFoundError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.records import consume


@pytest.fixture(autouse=True)
def _leave_signals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "unwind_on_signals", lambda: None)


@pytest.mark.broker
def test_seeding_by_command(
    connection: ConnectionSettings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    some = data.flights(50)
    monkeypatch.setattr(data, "flights", lambda: some)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", connection.bootstrap_servers)
    for _ in range(2):
        answer = CliRunner().invoke(main.app, ["seed"])
        assert answer.exit_code == 0, answer.output
        assert "done  Writing flights to Kafka" in capfd.readouterr().err
    assert len(consume(connection.bootstrap_servers, FLIGHTS)) == 50


@pytest.mark.broker
def test_seeding_that_cannot_be_says_why_in_two_lines(
    connection: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = data.flights(50)
    monkeypatch.setattr(data, "flights", lambda: some)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", connection.bootstrap_servers)
    assert CliRunner().invoke(main.app, ["seed"]).exit_code == 0
    monkeypatch.undo()
    more = data.flights(60)
    monkeypatch.setattr(data, "flights", lambda: more)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", connection.bootstrap_servers)
    monkeypatch.setattr(main, "unwind_on_signals", lambda: None)
    answer = CliRunner().invoke(main.app, ["seed"])
    assert answer.exit_code == 1
    assert answer.stderr.splitlines()[-2].startswith("error: topic 'flights' contains 50 records")
    assert answer.stderr.splitlines()[-1].startswith("  How to fix: ")


def test_the_error_of_ours_is_found_inside_dagsters() -> None:
    ours = TopicNotFoundError("no topic", fix="make it")

    @dg.asset
    def failing() -> None:
        raise ValueError("outer") from ours

    with pytest.raises(ValueError, match="outer") as caught:
        dg.materialize([failing])
    assert kpipe_error(caught.value) is ours
    assert kpipe_error(ValueError("other")) is None
