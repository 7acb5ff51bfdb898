"""Conformance test of a codec: what kpipe relies on, on every way that a record takes.

`check_codec` needs neither Spark nor Kafka. `check_codec_in_topics` reads and writes topics with the codec, for values
and for keys. Both raise ``AssertionError`` and name what differs.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kpipe_platform.codecs import Codec, DecodeFault, EncodeFault
from kpipe_platform.codecs.config import codec_from_config, codec_to_config
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.testing.codec_cases import CodecCase, Pinned, id_of, require_same, require_that

if TYPE_CHECKING:
    from kpipe_platform.io_managers import KafkaIOManager

__all__ = ["CodecCase", "check_codec", "check_codec_in_topics"]


def check_codec(case: CodecCase, *, registry: RegistryClient | None = None, topic: str = "codec-check") -> None:
    """Check a codec in Python: its declaration, single records, and Arrow batches. Needs neither Spark nor Kafka.

    Args:
        case: The codec and its values.
        registry: The schema registry, for a codec that needs one.
        topic: The topic of the schemas in the registry.

    Raises:
        AssertionError: The codec differs from what kpipe relies on.
    """
    require_that(len(case.values) > 1, "a case needs at least two values")
    _check_declaration(case.codec)
    pinned = Pinned.of(case, registry, topic, "value")
    _check_records(case, pinned)
    _check_any_bytes(case, pinned)
    _check_batches(case, pinned)


def _check_declaration(codec: Codec) -> None:
    copies = {
        "pickle": pickle.loads(pickle.dumps(codec)),  # noqa: S301 - the codec's own bytes
        "the codec's settings as JSON": codec_from_config(json.loads(json.dumps(codec_to_config(codec)))),
        "the settings of its topic": KafkaTopic.from_config(
            json.loads(json.dumps(KafkaTopic("t", value_codec=codec, key_codec=codec).to_config()))
        ).key_codec,
    }
    for how, copy in copies.items():
        require_same(copy, codec, f"the codec differs after {how}")
        require_same(hash(copy), hash(codec), f"the codec's hash differs after {how}")


def _check_records(case: CodecCase, pinned: Pinned) -> None:
    reader, writer = pinned.reader, pinned.writer
    require_same(reader.decode(None), None, "decode(None)")
    require_same(writer.encode(None), None, "encode(None)")
    for value in case.values:
        data = pinned.encode(value)
        require_same(reader.decode(data), value, f"decode(encode(value)); the bytes are {data!r:.200}")
        require_same(reader.diagnose(data), None, f"diagnose({data!r:.200}), which decode")
        require_same(type(reader.decode(data)), type(value), f"type of decode({data!r:.200})")
    for data, value in case.lenient.items():
        require_same(reader.decode(data), value, f"decode({data!r:.200})")
        require_same(reader.diagnose(data), None, f"diagnose({data!r:.200}), which decode")
    for data, kind in case.faults.items():
        raised = _fault_of(reader, data)
        require_that(raised is not None, f"decode({data!r:.200}) raised no DecodeFault")
        for fault in (raised, reader.diagnose(data), reader.explain(data)):
            found = None if fault is None else (fault.kind, bool(fault.message))
            require_same(
                found, (kind, True), f"kind of the fault of {data!r:.200}, and whether it has a message ({fault})"
            )
        again = pickle.loads(pickle.dumps(raised))  # noqa: S301 - the fault's own bytes
        require_same(str(again), str(raised), "a fault differs after pickle")
    for value in (*case.not_encodable, *case.misfits):
        try:
            encoded = writer.encode(value)
        except EncodeFault as fault:
            require_that(bool(fault.message), f"the EncodeFault of {value!r:.200} has no message")
        else:
            message = f"encode({value!r:.200}) returned {encoded!r:.200} and raised no EncodeFault"
            raise AssertionError(message)


def _fault_of(codec: Codec, data: bytes) -> DecodeFault | None:
    try:
        codec.decode(data)
    except DecodeFault as fault:
        return fault
    return None


def _check_any_bytes(case: CodecCase, pinned: Pinned) -> None:
    """Check that no bytes raise anything except a `DecodeFault`: a single record must not stop a slice."""
    for data in _spoiled(case.codec, [pinned.encode(value) for value in case.values]):
        try:
            fault = _fault_of(pinned.reader, data)
        except Exception as error:
            message = f"decode({data!r:.200}) raised {type(error).__name__}, not DecodeFault: {error}"
            raise AssertionError(message) from error
        diagnosed = pinned.reader.diagnose(data)
        require_same(
            None if diagnosed is None else diagnosed.message,
            None if fault is None else fault.message,
            f"diagnose({data!r:.200}) and decode differ",
        )


def _spoiled(codec: Codec, good: Sequence[bytes]) -> Iterator[bytes]:
    """Bytes that may not decode. The id of the schema stays, because another id needs the registry."""
    chance = random.Random(0)  # noqa: S311 - the same bytes in each run
    for data in good[:3]:
        frame = id_of(codec, data)
        content = data[len(frame) :]
        for end in sorted({0, 1, len(content) // 2, max(len(content) - 1, 0)}):
            yield frame + content[:end]
        yield data + b"\x00"
        for _ in range(20):
            spoiled = bytearray(content or b"\x00")
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
            yield frame + bytes(spoiled)
    if not codec.is_framed:
        yield from (b"", b" ", b"\x00", b"\xff\xfe", b"null", b"{}", b"\xff" * 20)


def _check_batches(case: CodecCase, pinned: Pinned) -> None:
    if case.codec.is_expression:
        return
    import pyarrow as pa

    from kpipe_platform.codecs.batches import decode_each, encode_each
    from kpipe_platform.spark.batches import arrow_type, decode_batch, encode_batch

    reader, writer = pinned.reader, pinned.writer
    kind = arrow_type(reader)
    good = [pinned.encode(value) for value in case.values]
    among: list[bytes | None] = [None, *case.lenient, None]
    for number, bad in enumerate(case.faults):
        among += [good[number % len(good)], bad]
    batches: dict[str, list[bytes | None]] = {
        "good values": [*good],
        "good values, faults and nulls": among,
        "only faults": [*case.faults],
        "only nulls": [None, None],
        "nothing": [],
    }
    for what, chosen in batches.items():
        # A slice, because Spark's batches may be parts of larger ones.
        batch = pa.array([b"", *chosen, b""], pa.binary()).slice(1, len(chosen))
        decoded = decode_batch(reader, batch, kind)
        expected = decode_each(reader.decode, batch, kind, reader.value_type)
        require_same(decoded.to_pylist(), expected.to_pylist(), f"decode_batch of {what}")
    for data in good:
        held = decode_each(reader.decode, pa.array([data], pa.binary()), kind, reader.value_type)
        require_that(not held.null_count, f"{kind}, the codec's value_type, cannot hold the value of {data!r:.200}")
    # Otherwise each batch is decoded twice.
    reader.decode_batch(pa.array(good, pa.binary()), kind)
    values = [*case.values, None, *case.misfits, *case.values]
    for what, those in {"values, nulls and misfits": values, "nothing": []}.items():
        array = pa.array(those, kind)
        encoded, reasons = encode_batch(writer, array)
        expected, misfits = encode_each(writer.encode, array)
        require_same(encoded.to_pylist(), expected.to_pylist(), f"encode_batch of {what}")
        require_same(reasons.is_null().to_pylist(), misfits.is_null().to_pylist(), f"refused by encode_batch of {what}")
        if case.is_exact and those:
            require_same(encoded.to_pylist()[: len(good)], good, "bytes of encode_batch and of encode")


# ------------------------------------------------------------------------------------------------ in topics


def check_codec_in_topics(case: CodecCase, manager: KafkaIOManager) -> None:
    """Check a codec on every way that a record takes through kpipe. Needs a broker and Spark, and takes 10 to 20 s.

    The ways are: decoding and writing in a single pass and by the general path, from Spark's cache, as pandas, Arrow
    and `KafkaRecord`, by ``@kafka_asset`` and by a plain ``@dg.asset``, without the record that a stage fails on, as
    a table, and by a redrive. The codec decodes and encodes values, and keys if ``case.is_key``. Null keys,
    tombstones and records that do not decode are among the records.

    Args:
        case: The codec and its values.
        manager: An IO manager with a dead-letter destination, such as that of the fixture ``kafka_io_manager``. The
            topics are created on the brokers of its source. If the codec needs a schema registry, the manager's
            connection has one.

    Raises:
        AssertionError: A record differs from what the codec's Python methods say.
    """
    from kpipe_platform.testing.codec_topics import TopicsCheck

    TopicsCheck(case, manager).run()
