"""The flights platform on the cluster: its work, and what ordinary consumers find after it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.dataset as ds
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from rich.console import Console

from examples.flights.progress import Steps
from examples.flights.reading import await_settled, group_lags
from examples.flights.seed import seed
from examples.flights.work import Work
from kpipe_platform.demo import data
from kpipe_platform.demo.assets import airlines, carrier_delays, flights_enriched, planes
from kpipe_platform.demo.platform import BOOTSTRAP_SERVERS, DATA_DIR, SPARK_REMOTE, resources
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS, PARTITIONS
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.records import consume
from kpipe_platform.testing.topics import log_ranges
from kpipe_platform_tests.each_once import assert_each_once

# Partitions of __transaction_state on embedded brokers.
_STATE_PARTITIONS = 5


class Flights:
    """Topics of flights on a broker, and the platform that works on them.

    Args:
        broker: The brokers.
        remote: The engine.
        folder: For tables.
        instance: Dagster's records.
        count: Only the first so many flights.
    """

    def __init__(
        self, broker: EmbeddedBroker, remote: str, folder: Path, instance: dg.DagsterInstance, count: int
    ) -> None:
        self.broker = broker
        servers = broker.bootstrap_servers
        self.connection = ConnectionSettings(bootstrap_servers=servers)
        self.sent = data.flights(count)
        self.platform = resources({BOOTSTRAP_SERVERS: servers, DATA_DIR: str(folder), SPARK_REMOTE: remote})
        self.work = Work(self.platform, instance)
        source = self.platform["kafka_io_manager"].source
        self.groups = {source.group(flights_enriched.key): FLIGHTS, source.group(carrier_delays.key): ENRICHED}
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        assert seed(self.connection, self.sent).written == len(self.sent)
        self.work.materialize(planes, airlines)

    @property
    def transactional_id(self) -> str:
        """Under which slices of partition 0 commit."""
        return f"{next(iter(self.groups))}.{FLIGHTS}.0"

    def enrich_one(self) -> dict[str, Any]:
        """One slice of partition 0."""
        return self.work.materialize(flights_enriched, partition="0")

    def finish(self) -> None:
        """Slices of everything until caught up."""
        with Steps(Console(file=io.StringIO())).step("work") as step:
            self.work.enrich(step)
            await_settled(self.connection, [ENRICHED, DEAD_LETTERS])
            self.work.summarize_delays(step)

    def committed(self) -> int:
        """How far the group is in partition 0."""
        group = next(iter(self.groups))
        end = log_ranges(self.broker.bootstrap_servers, FLIGHTS)[0][1]
        return end - group_lags(self.connection, group, FLIGHTS)[0]

    def is_writing(self) -> bool:
        """Whether there are outputs of a transaction that is not decided yet."""
        committed = self._ends(IsolationLevel.READ_COMMITTED)
        return committed != self._ends(IsolationLevel.READ_UNCOMMITTED)

    def coordinator(self) -> int:
        """The broker that coordinates the transactions of partition 0's slices."""
        hashed = 0
        for character in self.transactional_id:
            hashed = (31 * hashed + ord(character)) & 0xFFFFFFFF
        state = self._admin.list_topics("__transaction_state", timeout=10).topics["__transaction_state"]
        return int(state.partitions[(hashed & 0x7FFFFFFF) % _STATE_PARTITIONS].leader)

    def _ends(self, isolation: IsolationLevel) -> dict[int, int]:
        wanted = {TopicPartition(ENRICHED, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        found = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=10)
        return {place.partition: future.result().offset for place, future in found.items()}

    def aborted(self) -> int:
        """Outputs that were written and that no reader of committed records will see."""
        await_settled(self.connection, [ENRICHED])
        servers = self.broker.bootstrap_servers
        every, committed = (
            consume(servers, ENRICHED, isolation=level) for level in ("read_uncommitted", "read_committed")
        )
        return len(every) - len(committed)

    def assert_exactly_once(self) -> None:
        """Every flight is in the outputs or the dead letters, once, with its own content, in order; offsets are at the
        end; the table has a row for each output."""
        await_settled(self.connection, [FLIGHTS, ENRICHED, DEAD_LETTERS])
        source, outputs, letters = (
            consume(self.broker.bootstrap_servers, topic) for topic in (FLIGHTS, ENRICHED, DEAD_LETTERS)
        )
        flights = {(record.partition, record.offset): record for record in source}
        assert len(flights) == len(self.sent)
        enriched, dead = assert_each_once(source, outputs, letters)
        never_left = {place for place, record in flights.items() if "dep_time" not in record.json()}
        assert dead.keys() == never_left
        for place, record in enriched.items():
            flight = flights[place].json()
            found = record.json()
            assert {name: found[name] for name in ("flight", "carrier", "dep_time")} == {
                name: flight[name] for name in ("flight", "carrier", "dep_time")
            }
            assert record.key == flights[place].key
        for group, topic in self.groups.items():
            assert set(group_lags(self.connection, group, topic).values()) == {0}
        table = self.platform["tables"].path(carrier_delays.key)
        assert ds.dataset(table, partitioning="hive").count_rows() == len(enriched)


@contextmanager
def flights_on(
    broker: EmbeddedBroker, remote: str, folder: Path, count: int, during: Callable[[], str]
) -> Iterator[Flights]:
    """The platform, with the engine's logs beside whatever goes wrong."""
    with dg.DagsterInstance.ephemeral(tempdir=str(folder)) as instance:
        try:
            yield Flights(broker, remote, folder / "tables", instance, count)
        except BaseException as error:
            error.add_note(during()) if hasattr(error, "add_note") else None
            raise
