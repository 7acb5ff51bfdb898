"""The records of the cases: orders of 141 bytes, some of them not JSON, and what must become of each."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

VALUE_BYTES = 141
FIELDS = "order_id BIGINT, customer STRING, amount DOUBLE, country STRING, note STRING, ts BIGINT"
TAX = 1.2

COUNTRIES = ("de", "fr", "it", "nl", "pl", "se", "uk", "us")
_BAD_EVERY = 1_000
_FIRST_TS = 1_767_225_600_000


@dataclass(frozen=True)
class Orders:
    """Orders 0 to ``count`` - 1, made from their numbers alone, so that any output can be checked.

    Args:
        count: How many records; one in a thousand is not JSON.
    """

    count: int

    @property
    def bad(self) -> int:
        """How many are not JSON."""
        return self.count // _BAD_EVERY

    @staticmethod
    def is_bad(number: int) -> bool:
        return number % _BAD_EVERY == _BAD_EVERY - 1

    @staticmethod
    def customer(number: int) -> str:
        return f"customer-{number * 31 % 50_000:05d}"

    @staticmethod
    def country(number: int) -> str:
        return COUNTRIES[number % len(COUNTRIES)]

    @staticmethod
    def amount(number: int) -> float:
        return number * 7_919 % 100_000 / 100

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each record, in order."""
        for number in range(self.count):
            yield self.key(number), self.value(number)

    @staticmethod
    def key(number: int) -> bytes:
        """Key of a record, and of what is made of it: its customer."""
        return _key(number % _PERIOD)

    def value(self, number: int) -> bytes:
        """Value of one record, 141 bytes."""
        if self.is_bad(number):
            return f"order {number} is no JSON".ljust(VALUE_BYTES, ".").encode()
        head, tail = b'{"order_id":%d,%b' % (number, _middle(number % _PERIOD)), b'","ts":%d}' % (_FIRST_TS + number)
        return head + b"x" * (VALUE_BYTES - len(head) - len(tail)) + tail

    @staticmethod
    def headers(number: int) -> list[tuple[str, str | bytes | None]]:
        """The two headers of a record, where a case wants some."""
        return [("trace-id", f"{number:016x}".encode()), ("tenant", b"benchmarks")]

    def enriched_json(self, number: int) -> bytes:
        """``enriched`` as Spark and kpipe write it; there a number may be written in another way, to the same value."""
        return b'{"order_id":%d,%b' % (number, _enriched_rest(number % _PERIOD))

    def enriched(self, number: int) -> dict[str, object]:
        """What the enrichment must make of a good record."""
        return {
            "order_id": number,
            "customer": self.customer(number),
            "country": self.country(number),
            "gross": self.amount(number) * TAX,
        }


# Customers, amounts and countries repeat after so many orders. Checks ask for those of tens of millions.
_PERIOD = 100_000


@cache
def _key(number: int) -> bytes:
    return Orders.customer(number).encode()


@cache
def _middle(number: int) -> bytes:
    customer, amount, country = Orders.customer(number), Orders.amount(number), Orders.country(number)
    return f'"customer":"{customer}","amount":{amount:.2f},"country":"{country}","note":"'.encode()


@cache
def _enriched_rest(number: int) -> bytes:
    customer, gross, country = Orders.customer(number), Orders.amount(number) * TAX, Orders.country(number)
    return f'"customer":"{customer}","country":"{country}","gross":{gross!r}}}'.encode()


@dataclass(frozen=True)
class LargeOrders(Orders):
    """Orders of another size, all of them JSON, whose notes no compression makes smaller.

    Args:
        value_bytes: Size of a value; at most 1,000,000.
    """

    value_bytes: int = 1_000

    @property
    def bad(self) -> int:
        return 0

    @staticmethod
    def is_bad(number: int) -> bool:
        del number
        return False

    def value(self, number: int) -> bytes:
        """Value of one record."""
        head, tail = f'{{"order_id":{number},"note":"'.encode(), b'"}'
        noise, length = _noise(), self.value_bytes - len(head) - len(tail)
        # Neighbors are further apart than what a compressor looks back.
        start = number * _NOISE_STRIDE % (len(noise) - length)
        return head + noise[start : start + length] + tail


_NOISE_STRIDE = 1_000_003


@cache
def _noise() -> bytes:
    return base64.b64encode(random.Random(0).randbytes(3 * 2**20))
