"""The part of `kpipe_platform.testing.codecs` that reads and writes topics, with Dagster and Spark."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import dagster as dg
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform.assets import kafka_asset, kafka_topic_asset, table_input
from kpipe_platform.codecs import DecodeFault, JsonCodec, RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.dead_letters.redrive.redrive import redrive
from kpipe_platform.errors import KpipeError, RecordFaultError
from kpipe_platform.io_managers import KafkaIOManager
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, FaultAction
from kpipe_platform.testing.codec_cases import CodecCase, Pinned, require_same, require_that
from kpipe_platform.testing.messages import ConsumedRecord
from kpipe_platform.testing.records import consume, produce
from kpipe_platform.testing.topics import create_topic

Record = dict[str, bytes | None]
Seen = tuple[bytes | None, bytes | None, str, str]
"""Key and value of a dead letter's record, the kind of its fault, and the component."""

_NEW_KEY = b"new"
_POISON = "poison"


def unchanged(records: DataFrame) -> DataFrame:
    """Written in a single pass."""
    return records


def in_order(records: DataFrame) -> DataFrame:
    """Not written in a single pass."""
    return records.orderBy(F.col("_kafka.offset").desc())


def as_pandas(records: pd.DataFrame) -> pd.DataFrame:
    """Converted to pandas and back."""
    return records


def as_arrow(records: pa.Table) -> pa.Table:
    """Converted to Arrow and back."""
    return records


def keyed(records: DataFrame) -> DataFrame:
    """An output whose key is the decoded key."""
    return records.select(F.col("_kafka.offset").alias("id"), "_kafka")


class TopicsCheck:
    """One case, with topics and assets of its own."""

    def __init__(self, case: CodecCase, manager: KafkaIOManager) -> None:
        self.case = case
        self.manager = manager
        self.settings = manager.source.connection_settings
        self.client = self.settings.for_librdkafka()
        self.registry = self.settings.registry()
        self.id = f"codec-{uuid.uuid4().hex[:12]}"
        self.key_codec = case.codec if case.is_key else RawCodec()
        self.instance = dg.DagsterInstance.ephemeral()

    def run(self) -> None:
        """Run all checks."""
        with self.instance:
            self.source = create_topic(self.client, f"{self.id}.in")
            self.value = Pinned.of(self.case, self.registry, self.source, "value")
            keys = replace(self.case, codec=self.key_codec, lenient={}, faults={})
            if not self.case.is_key:
                keys = replace(keys, values=[b"%d" % number for number in range(len(self.case.values))])
            self.keys = keys
            self.key = Pinned.of(keys if not self.case.is_key else self.case, self.registry, self.source, "key")
            self.topic_asset = kafka_topic_asset(
                self.source, value_codec=self.case.codec, key_codec=self.key_codec, partitions=1, name="records"
            )
            self._nothing()
            self._redriven()
            self._each_way()
            self._cached()
            self._rethrown()
            self._table()

    # The records

    def _good_key(self, number: int) -> bytes:
        return self.key.encode(self.keys.values[number % len(self.keys.values)])

    def _good_value(self, number: int) -> bytes:
        return self.value.encode(self.case.values[number % len(self.case.values)])

    def _records(self) -> list[Record]:
        """Good records, and each bad one between them."""
        bad: list[Record] = [{"key": self._good_key(i), "value": data} for i, data in enumerate(self.case.faults)]
        if self.case.is_key:
            bad += [{"key": data, "value": self._good_value(i)} for i, data in enumerate(self.case.faults)]
        bad += [{"key": self._good_key(0), "value": None}, {"key": None, "value": self._good_value(0)}]
        bad += [{"key": None, "value": None}, *({"key": None, "value": data} for data in self.case.lenient)]
        made: list[Record] = []
        for number in range(max(len(bad), len(self.case.values))):
            made.append({"key": self._good_key(number), "value": self._good_value(number)})
            made += bad[number : number + 1]
        return made

    def _faults(self, records: Sequence[ConsumedRecord]) -> Counter[Seen]:
        faults = self.case.faults
        found: Counter[Seen] = Counter()
        for record in records:
            if self.case.is_key and record.key is not None and record.key in faults:
                found[record.key, record.value, faults[record.key], Component.DECODE_KEY.value] += 1
            elif record.value is not None and record.value in faults:
                found[record.key, record.value, faults[record.value], Component.DECODE_VALUE.value] += 1
        return found

    def _good(self, records: Sequence[ConsumedRecord]) -> list[ConsumedRecord]:
        faults = self.case.faults
        return [r for r in records if r.value not in faults and not (self.case.is_key and r.key in faults)]

    def _consumed(self, topic: str) -> list[ConsumedRecord]:
        return consume(self.client, topic, settle_s=15)

    # The assets

    def _asset(self, name: str, stage: Callable[..., Any], **topic: Any) -> dg.AssetsDefinition:
        destination = KafkaTopic(self._target(name), **({"value_codec": self.case.codec} | topic))
        create_topic(self.client, destination.name)
        return kafka_asset(
            source=self.topic_asset,
            name=name,
            topic=destination,
            on_fault=FaultAction.DEAD_LETTER,
            max_dead_letter_ratio=1.0,
        )(stage)

    def _target(self, name: str) -> str:
        return f"{self.id}.{name}"

    def _materialize(self, *assets: dg.AssetsDefinition, partition: str | None = "0", reads: Any = None) -> None:
        dg.materialize(
            [reads or self.topic_asset, *assets],
            selection=list(assets),
            resources={"kafka_io_manager": self.manager},
            partition_key=partition,
            instance=self.instance,
        )

    def _dead_letters(self, asset: str) -> Counter[Seen]:
        found: Counter[Seen] = Counter()
        for record in self._consumed(f"{self.source}.dlq"):
            envelope = decode_envelope(record.value or b"")
            if envelope.asset == asset:
                fault, original = envelope.fault, envelope.original
                kind = fault.kind if fault.component is not Component.STAGE else _POISON
                found[original.key, original.value, kind, fault.component.value] += 1
                require_that(bool(fault.message), f"{asset}: the dead letter of {original.value!r:.200} has no message")
        return found

    def _check(
        self,
        asset: str,
        records: Sequence[ConsumedRecord],
        *,
        faults: Counter[Seen] | None = None,
        further: Sequence[tuple[bytes | None, Any]] = (),
    ) -> None:
        """Compare an asset's output and dead letters with its input."""
        target = self._target(asset)
        written = self._consumed(target)
        lenient, is_exact = self.case.lenient, self.case.is_exact
        codecs = Pinned.of(self.case, self.registry, target, "value")

        def content(codecs: Pinned, data: bytes | None, value: Any) -> Any:
            # A lenient form is written in the form that encode returns.
            return codecs.content(data if value is None else codecs.encode(value), is_exact=is_exact)

        # Records without an offset are written first.
        expected = [(key, content(codecs, None, value)) for key, value in further]
        # A tombstone is not an empty value, which may be a lenient form.
        forms = [None if r.value is None else lenient.get(r.value) for r in records]
        expected += [(r.key, content(self.value, r.value, form)) for r, form in zip(records, forms, strict=True)]
        found = [(r.key, content(codecs, r.value, None)) for r in written]
        require_same(found, expected, f"{asset}: keys and values of the output")
        require_same(self._dead_letters(asset), faults or Counter(), f"{asset}: dead letters")

    # The ways

    def _nothing(self) -> None:
        """A plain asset over an empty topic gets the columns."""
        seen: list[Any] = []

        def plain(records: pd.DataFrame) -> pd.DataFrame:
            seen.append(list(records.columns))
            return records

        self._plain = dg.asset(
            name="plain",
            io_manager_key="kafka_io_manager",
            partitions_def=self.topic_asset.partitions_def,
            metadata={
                **KafkaTopic(self._target("plain"), value_codec=self.case.codec).as_metadata(),
                "kpipe/on_fault": "dead_letter",
            },
        )(plain)
        create_topic(self.client, self._target("plain"))
        self._materialize(self._plain)
        columns = self.value.reader.fields.names if self.case.codec.is_struct else ["value"]
        require_same(seen, [[*columns, "_kafka"]], "columns of an empty slice")

    def _redriven(self) -> None:
        """Dead letters have the original bytes, and a redrive sends them again."""
        sent = self._records()
        produce(self.client, self.source, sent)
        records = self._consumed(self.source)
        self._materialize(self._asset("unchanged", unchanged))
        faults = self._faults(records)
        self._check("unchanged", self._good(records), faults=faults)
        if not faults:
            return
        redrive(self.settings, RedriveOptions(f"{self.source}.dlq"))
        again = self._consumed(self.source)[len(records) :]
        require_same(
            Counter((r.key, r.value) for r in again),
            Counter({(key, value): count for (key, value, _, _), count in faults.items()}),
            "keys and values after a redrive",
        )
        produce(self.client, self.source, sent[:2])

    def _each_way(self) -> None:
        """One run of assets that take the records in each form."""
        records = self._consumed(self.source)
        good, faults = self._good(records), self._faults(records)
        with_value = [r for r in good if r.value is not None and r.value not in self.case.lenient]
        # Bytes in a KafkaRecord are a value that is encoded already.
        wrong_values = [value for value in self.case.not_encodable if not isinstance(value, bytes)]
        not_encodable = with_value[: len(wrong_values)]
        misfits = with_value[: len(self.case.misfits)]
        poisoned = with_value[-1]

        def as_records(records: list[KafkaRecord]) -> list[KafkaRecord]:
            wrong = dict(zip((r.offset for r in not_encodable), wrong_values, strict=True))
            made = [replace(r, value=wrong[r.offset]) if r.offset in wrong else r for r in records]
            return [*made, KafkaRecord(key=_NEW_KEY, value=self.case.values[0])]

        def misfitting(records: pa.Table) -> pa.Table:
            wrong = dict(zip((r.offset for r in misfits), self.case.misfits, strict=True))
            rows = records.to_pylist()
            for row in rows:
                value = wrong.get(row["_kafka"]["offset"])
                if value is not None:
                    row.update(value if self.case.codec.is_struct else {"value": value})
            return pa.Table.from_pylist(rows, schema=records.schema)

        def failing(records: DataFrame) -> DataFrame:
            name = records.columns[0]
            error = F.raise_error(F.lit(_POISON)).cast(records.schema[0].dataType)
            is_poisoned = F.col("_kafka.offset") == poisoned.offset
            return records.withColumn(name, F.when(is_poisoned, error).otherwise(records[name]))

        assets = {
            "in_order": self._asset("in_order", in_order),
            "as_pandas": self._asset("as_pandas", as_pandas),
            "as_arrow": self._asset("as_arrow", as_arrow),
            "as_records": self._asset("as_records", as_records),
            "misfitting": self._asset("misfitting", misfitting),
            "failing": self._asset("failing", failing),
            "keyed": self._asset(
                "keyed", keyed, value_codec=JsonCodec(), key_column="_kafka.key", key_codec=self.key_codec
            ),
            "plain": self._plain,
        }
        self._materialize(*assets.values())
        for name in ("in_order", "as_pandas", "as_arrow", "plain"):
            self._check(name, good, faults=faults)
        rejected = Component.DESTINATION.value
        for name, refused in {"as_records": not_encodable, "misfitting": misfits}.items():
            own = Counter((r.key, r.value, "does_not_fit", rejected) for r in refused)
            new = [(_NEW_KEY, self.case.values[0])] if name == "as_records" else []
            self._check(name, [r for r in good if r not in refused], faults=faults + own, further=new)
        own = Counter([(poisoned.key, poisoned.value, _POISON, Component.STAGE.value)])
        self._check("failing", [r for r in good if r is not poisoned], faults=faults + own)
        self._check_keys(good)

    def _check_keys(self, good: Sequence[ConsumedRecord]) -> None:
        """The key codec wrote the decoded keys."""
        written = self._consumed(self._target("keyed"))
        codecs = Pinned.of(self.keys, self.registry, self._target("keyed"), "key")
        is_exact = self.case.is_exact
        require_same(
            [(r.json()["id"], codecs.content(r.key, is_exact=is_exact)) for r in written],
            [(r.offset, self.key.content(r.key, is_exact=is_exact)) for r in good],
            "keys that the key codec wrote",
        )

    def _cached(self) -> None:
        """A slice that is not small: Spark caches its rows."""
        records = self._consumed(self.source)
        with mock.patch("kpipe_platform.spark.source.rows._SMALL", 0):
            self._materialize(self._asset("cached", in_order))
        self._check("cached", self._good(records), faults=self._faults(records))

    def _rethrown(self) -> None:
        """The run fails with the codec's own fault."""
        if not self.case.faults:
            return
        stage = kafka_asset(
            source=self.topic_asset,
            name="rethrown",
            topic=KafkaTopic(self._target("unchanged"), value_codec=self.case.codec),
            on_fault=FaultAction.RETHROW,
        )(unchanged)
        try:
            self._materialize(stage)
        except DecodeFault as fault:
            require_that(fault.kind in self.case.faults.values(), f"rethrown fault of kind {fault.kind}: {fault}")
        else:
            message = "a run with FaultAction.RETHROW did not raise the codec's DecodeFault"
            raise AssertionError(message)

    def _table(self) -> None:
        """A compacted topic, as the latest value of each key."""
        topic = create_topic(self.client, f"{self.id}.table", config={"cleanup.policy": "compact"})
        value = Pinned.of(self.case, self.registry, topic, "value")
        key = Pinned.of(self.case if self.case.is_key else self.keys, self.registry, topic, "key")
        first, second = (key.encode(each) for each in self.keys.values[:2])
        data = [value.encode(each) for each in self.case.values[:2]]
        # The first key ends with a tombstone, the second with the first value.
        sent = [(first, data[0]), (second, data[1]), (first, None), (second, data[0])]
        sent += [(key.encode(k), value.encode(v)) for k, v in zip(self.keys.values[2:], self.case.values[2:])]  # noqa: B905
        produce(self.client, topic, sent)
        removing = [value.encode(each) for each in self.case.removing]
        expected = {k: v for k, v in sent if k != first and v not in removing}
        read: list[KafkaRecord] = []
        table = kafka_topic_asset(
            topic, value_codec=self.case.codec, key_codec=self.key_codec, partitions=1, name="table"
        )

        def latest(table: list[KafkaRecord]) -> None:
            read.extend(table)

        asset = dg.asset(name="latest", ins={"table": table_input()})(latest)
        self._materialize(asset, partition=None, reads=table)
        is_exact = self.case.is_exact
        require_same(
            {r.key: value.content(value.encode(r.value), is_exact=is_exact) for r in read},
            {k: value.content(v, is_exact=is_exact) for k, v in expected.items()},
            "a topic as a table",
        )
        for bad in list(self.case.faults)[:1]:
            produce(self.client, topic, [(second, bad)])
            try:
                self._materialize(asset, partition=None, reads=table)
            except RecordFaultError as error:
                fault = value.reader.explain(bad)
                require_that(fault.message in str(error), f"the error of a table names no reason: {error}")
            except KpipeError as error:
                message = f"a table with a value that does not decode raised {type(error).__name__}: {error}"
                raise AssertionError(message) from error
            else:
                message = "a table with a value that does not decode was read"
                raise AssertionError(message)
