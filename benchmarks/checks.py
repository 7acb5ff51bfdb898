"""What must be in the topics after a run: every record once, in its order, with the right key and value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from confluent_kafka import Message

from benchmarks.measure import Problems
from benchmarks.orders import Orders
from benchmarks.topics import read

ERROR_OFFSET = "__connect.errors.offset"
ERROR_PARTITION = "__connect.errors.partition"

Found = tuple[int, bool] | None
"""The order that a record is of, and whether it is as it should be; None: of no order that should be there."""

# A value of `Orders.value`, whether it is JSON or not, or what was made of it.
_NUMBER = re.compile(rb'(?:\{"order_id":|order )(\d+)')


def enriched_problems(
    bootstrap_servers: str,
    topic: str,
    orders: Orders,
    partitions: int = 1,
    *,
    parse: Callable[[bytes], Any] | None = None,
) -> Problems:
    """What is wrong with a topic that must hold every good order enriched, once, in order and with its key.

    Args:
        bootstrap_servers: The broker.
        topic: The topic.
        orders: What was in its source.
        partitions: Partitions of the source; the order holds within each.
        parse: Decodes a value; JSON by default.
    """

    def check(message: Message) -> Found:
        data = message.value() or b""
        number = number_of(data) if parse is None else None
        number = -1 if number is None else number
        # Nearly all are these very bytes, which is sooner seen than what the JSON says.
        is_right = data == orders.enriched_json(number)
        if not is_right:
            value = _object(data) if parse is None else parse(data)
            order_id = value.get("order_id")
            number = order_id if isinstance(order_id, int) else -1
            is_right = value == orders.enriched(number)
        if not 0 <= number < orders.count or orders.is_bad(number):
            return None
        return number, is_right and message.key() == orders.key(number)

    expected = orders.count - orders.bad
    return _problems(topic, read(bootstrap_servers, topic), orders.count, expected, partitions, check)


def copied_problems(
    bootstrap_servers: str, topic: str, orders: Orders, partitions: int = 1, *, headers: bool = False
) -> Problems:
    """What is wrong with a topic that must hold every order as it was, once, in order.

    Args:
        bootstrap_servers: The broker.
        topic: The topic.
        orders: What was in its source.
        partitions: Partitions of the source; the order holds within each.
        headers: Whether the orders had the headers of ``Orders.headers``, or none.
    """

    def check(message: Message) -> Found:
        number = number_of(message.value())
        if number is None or number >= orders.count:
            return None
        return number, (
            message.value() == orders.value(number)
            and message.key() == orders.key(number)
            and (message.headers() or []) == (orders.headers(number) if headers else [])
        )

    return _problems(topic, read(bootstrap_servers, topic), orders.count, orders.count, partitions, check)


def _problems(
    topic: str,
    messages: Iterable[Message],
    count: int,
    expected: int,
    partitions: int,
    check: Callable[[Message], Found],
) -> Problems:
    seen = bytearray(count)
    wrong: dict[str, int] = {}
    last: dict[tuple[int | None, int], int] = {}

    def note(what: str) -> None:
        wrong[what] = wrong.get(what, 0) + 1

    for message in messages:
        result = check(message)
        if result is None:
            note("are not expected orders")
            continue
        number, is_right = result
        if not is_right:
            note("have a wrong key, value or header")
        # What came from one partition and went to one partition has kept its order.
        lane = (message.partition(), number % partitions)
        if seen[number]:
            note("are duplicates")
        elif number < last.get(lane, -1):
            note("are out of order")
        seen[number] = 1
        last[lane] = number
    missing = expected - sum(seen)
    if missing:
        wrong["are missing"] = missing
    return [f"{topic}: {times:,} records {what}" for what, times in wrong.items()]


def drawn_problems(bootstrap_servers: str, topic: str, values: Collection[bytes], expected: int) -> Problems:
    """What is wrong with a topic that must hold so many records, each with one of the values and without a key.

    Args:
        bootstrap_servers: The broker.
        topic: The topic.
        values: What they were drawn from.
        expected: How many were to be written.
    """
    right = wrong = 0
    for message in read(bootstrap_servers, topic):
        is_right = message.value() in values and message.key() is None
        right, wrong = right + is_right, wrong + (not is_right)
    problems = [f"{topic}: {wrong:,} records do not have one of the given values"] if wrong else []
    if right != expected:
        problems.append(f"{topic}: {right:,} records have one of the given values, expected {expected:,}")
    return problems


def number_of(value: bytes | None) -> int | None:
    """The order that a value says it is of, where that is the first that it says."""
    match = _NUMBER.match(value or b"")
    return None if match is None else int(match[1])


def _object(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def dead_letter_problems(bootstrap_servers: str, topic: str, orders: Orders, partitions: int = 1) -> Problems:
    """What is wrong with a dead-letter topic that must hold every bad order once.

    Args:
        bootstrap_servers: The broker.
        topic: The topic.
        orders: What was in the source.
        partitions: Partitions of the source.
    """
    found: list[int] = []
    for message in read(bootstrap_servers, topic):
        headers = dict(message.headers() or ())
        offset, partition = (int(headers.get(name) or -1) for name in (ERROR_OFFSET, ERROR_PARTITION))
        # The source was filled in order, one partition after another in turn.
        found.append(offset * partitions + partition)
    expected = [number for number in range(orders.count) if orders.is_bad(number)]
    if sorted(found) == expected:
        return []
    return [
        f"{topic}: {len(found):,} dead letters of {len(set(found)):,} records, expected one for each of "
        f"{len(expected):,} bad orders"
    ]
