from __future__ import annotations

import json
from collections.abc import Iterator

import pandas as pd
import pytest
from confluent_kafka import Producer

from examples.flights import seed as seeding
from examples.flights.reading import committed_records, group_lags
from examples.flights.seed import seed
from kpipe_platform.demo import data
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.records import consume, log_ranges, produce
from kpipe_platform.testing.topics import create_topic

pytestmark = pytest.mark.broker

COUNT = 3_000


@pytest.fixture(scope="module")
def some_flights() -> pd.DataFrame:
    return data.flights(COUNT)


def test_every_flight_is_written_once_and_in_order(connection: ConnectionSettings, some_flights: pd.DataFrame) -> None:
    told: list[int] = []
    done = seed(connection, some_flights, told.append)
    assert (done.written, done.found) == (COUNT, 0)
    assert told[-1] == COUNT
    assert told == sorted(told)

    found = consume(connection.bootstrap_servers, FLIGHTS)
    assert sorted(r.value or b"" for r in found) == sorted(r.value for r in data.records(some_flights))
    assert {r.partition for r in found} == {0, 1, 2, 3}
    for number in range(4):
        timestamps = [r.timestamp_ms for r in found if r.partition == number]
        assert timestamps == sorted(timestamps)
    for record in found:
        flight = record.json()
        assert record.key == (flight["tailnum"].encode() if "tailnum" in flight else None)
        assert record.headers == (("carrier", flight["carrier"].encode()), ("origin", flight["origin"].encode()))
    for topic in (ENRICHED, DEAD_LETTERS):
        assert len(log_ranges(connection.bootstrap_servers, topic)) == 4


def test_a_second_seeding_finds_all_there(connection: ConnectionSettings, some_flights: pd.DataFrame) -> None:
    seed(connection, some_flights)
    done = seed(connection, some_flights)
    assert (done.written, done.found) == (0, COUNT)
    assert sum(1 for _ in committed_records(connection, FLIGHTS)) == COUNT


def test_an_interrupted_seeding_leaves_nothing_to_see(
    connection: ConnectionSettings, some_flights: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(frame: pd.DataFrame) -> Iterator[data.FlightRecord]:
        yield from data.records(frame.head(COUNT // 2))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(seeding, "records", interrupted)
        with pytest.raises(KeyboardInterrupt):
            seed(connection, some_flights)
    assert sum(1 for _ in committed_records(connection, FLIGHTS)) == 0
    assert seed(connection, some_flights).written == COUNT
    assert sum(1 for _ in committed_records(connection, FLIGHTS)) == COUNT


def test_what_a_killed_seeding_left_open_is_aborted(connection: ConnectionSettings, some_flights: pd.DataFrame) -> None:
    seeding._create_topics(connection)
    killed = Producer({**connection.for_librdkafka(), "transactional.id": seeding._TRANSACTIONAL_ID})
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(FLIGHTS, b"half", partition=0)
    killed.flush(30)

    seed(connection, some_flights)
    found = list(committed_records(connection, FLIGHTS))
    assert len(found) == COUNT
    assert b"half" not in [message.value() for message in found]


def test_a_topic_with_a_part_of_the_flights_is_refused(
    connection: ConnectionSettings, some_flights: pd.DataFrame
) -> None:
    seeding._create_topics(connection)
    produce(connection.bootstrap_servers, FLIGHTS, [json.dumps({"stray": 1})])
    with pytest.raises(ConfigError, match=r"contains 1 records instead of the 3,000 flights") as caught:
        seed(connection, some_flights)
    assert "delete the topics" in str(caught.value)


def test_a_topic_with_other_partitions_is_refused(connection: ConnectionSettings, some_flights: pd.DataFrame) -> None:
    create_topic(connection.bootstrap_servers, FLIGHTS, partitions=2)
    with pytest.raises(ConfigError, match="has 2 partitions"):
        seed(connection, some_flights)


def test_lag_counts_the_log_start_for_a_new_group(connection: ConnectionSettings, some_flights: pd.DataFrame) -> None:
    seed(connection, some_flights)
    # One marker of the transaction in each partition.
    assert sum(group_lags(connection, "nobody", FLIGHTS).values()) == COUNT + 4
