"""What the error headers of a message say when several systems left theirs, one after another.

The first original coordinates are where the record comes from; the last exception is why it is here. All families but
one append their headers, so their order tells which came first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kpipe_platform.deadletter.header_families import ATTEMPTS_HEADER, FAMILIES, HeaderFamily
from kpipe_platform.deadletter.numbers import read_number, read_text
from kpipe_platform.kafka.records import Headers


@dataclass(frozen=True, slots=True)
class Hops:
    """The families that left headers in one message.

    Args:
        headers: All headers of the message.
        present: The families, in order of their first header.
        origin: The first of those that name a topic; else the first of all.
        failure: The one whose exception is the last.
    """

    headers: Headers
    present: tuple[HeaderFamily, ...]
    origin: HeaderFamily
    failure: HeaderFamily

    def original_text(self, name: str | None) -> str | None:
        """The oldest header of that name, as text."""
        return read_text(self._value(name, self.origin, oldest=True))

    def original_number(self, name: str | None) -> int | None:
        """The oldest header of that name, as a number."""
        return read_number(self._value(name, self.origin, oldest=True))

    def failure_text(self, names: Iterable[str | None]) -> str | None:
        """Of the last failure the first of these headers that is there."""
        return self._newest(self.failure, names)

    def either(self, which: str) -> str | None:
        """What the last failure says, else the origin. ``which`` is ``who`` or ``kind``."""
        for family in (self.failure, self.origin):
            names = family.who if which == "who" else (family.kind,)
            found = self._newest(family, names)
            if found is not None:
                return found
        return None

    @property
    def topics(self) -> tuple[str, ...]:
        """The original topics that the headers name, each once."""
        names = {family.topic for family in self.present}
        return tuple(dict.fromkeys(read_text(value) or "" for name, value in self.headers if name in names and value))

    @property
    def keeps_timestamp(self) -> bool:
        """Whether the message has its record's timestamp: every hop must have kept it."""
        return all(family.keeps_timestamp for family in self.present)

    @property
    def keeps_headers(self) -> bool:
        """Whether the message has its record's own headers."""
        return all(family.keeps_headers for family in self.present)

    def _newest(self, family: HeaderFamily, names: Iterable[str | None]) -> str | None:
        for name in names:
            found = self._value(name, family, oldest=False)
            if found is not None:
                return read_text(found)
        return None

    def _value(self, name: str | None, family: HeaderFamily, *, oldest: bool) -> bytes | None:
        values = [value for each, value in self.headers if each == name and value is not None]
        if not values:
            return None
        return values[0] if oldest != family.prepends else values[-1]


def find_hops(headers: Headers) -> Hops | None:
    """The families that left headers; None where none did."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, (name, _) in enumerate(headers):
        first.setdefault(name, index)
        last[name] = index
    present = {}
    for family in FAMILIES:
        places = [first[name] for name in _names(family) if name in first]
        if places:
            present[family] = min(places)
    if not present:
        return None
    ordered = sorted(present, key=lambda family: present[family])
    named = [family for family in ordered if family.topic in first]
    origin = min(named, key=lambda f: first[f.topic or ""]) if named else ordered[0]

    def age(family: HeaderFamily) -> int:
        # The newest header of a family that prepends is its first one.
        places = first if family.prepends else last
        return max(places[name] for name in (*family.exceptions, *family.messages) if name in places)

    failing = [f for f in ordered if any(name in first for name in (*f.exceptions, *f.messages))]
    return Hops(headers, tuple(ordered), origin, max(failing, key=age) if failing else origin)


def attempts_of(headers: Headers) -> int | None:
    """How often a record was redriven; else how often others tried it; None where no header says so."""
    for names in ({ATTEMPTS_HEADER}, {family.attempts for family in FAMILIES}):
        counts = [read_number(value) for name, value in headers if name in names]
        known = [count for count in counts if count is not None]
        if known:
            return max(known)
    return None


def _names(family: HeaderFamily) -> list[str]:
    # The attempts are left out: they may stand in a record that is no dead letter, and two families share them.
    single = (family.topic, family.partition, family.offset, family.timestamp, family.cause, family.kind)
    return [name for name in (*single, *family.exceptions, *family.messages, *family.who) if name is not None]
