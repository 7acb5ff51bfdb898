"""The records of the cases: orders of 141 bytes, some of them not JSON, and what must become of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

VALUE_BYTES = 141
FIELDS = "order_id BIGINT, customer STRING, amount DOUBLE, country STRING, note STRING, ts BIGINT"
TAX = 1.2

_COUNTRIES = ("de", "fr", "it", "nl", "pl", "se", "uk", "us")
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
        return _COUNTRIES[number % len(_COUNTRIES)]

    @staticmethod
    def amount(number: int) -> float:
        return number * 7_919 % 100_000 / 100

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each record, in order."""
        for number in range(self.count):
            yield self.customer(number).encode(), self.value(number)

    def value(self, number: int) -> bytes:
        """Value of one record, 141 bytes."""
        if self.is_bad(number):
            return f"order {number} is no JSON".ljust(VALUE_BYTES, ".").encode()
        head = (
            f'{{"order_id":{number},"customer":"{self.customer(number)}","amount":{self.amount(number):.2f},'
            f'"country":"{self.country(number)}","note":"'
        )
        tail = f'","ts":{_FIRST_TS + number}}}'
        return (head + "x" * (VALUE_BYTES - len(head) - len(tail)) + tail).encode()

    @staticmethod
    def headers(number: int) -> list[tuple[str, str | bytes | None]]:
        """The two headers of a record, where a case wants some."""
        return [("trace-id", f"{number:016x}".encode()), ("tenant", b"benchmarks")]

    def enriched(self, number: int) -> dict[str, object]:
        """What the enrichment must make of a good record."""
        return {
            "order_id": number,
            "customer": self.customer(number),
            "country": self.country(number),
            "gross": self.amount(number) * TAX,
        }
