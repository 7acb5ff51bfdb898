"""Error headers of a message to which several tools added headers, one after another.

The first original coordinates are the record's origin. The last exception is the reason for its dead letter. Tools
append their headers, so the order of the headers is the order of the hops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kpipe_platform.dead_letters.envelope.origin import ATTEMPTS_HEADER
from kpipe_platform.dead_letters.read.families import HeaderFamily, header_families
from kpipe_platform.dead_letters.read.values import read_number, read_text
from kpipe_platform.kafka.model.records import Headers


@dataclass(frozen=True, slots=True)
class Hops:
    """The header families found in one message.

    Args:
        values: Header values of the message that are not null, by name, the oldest first.
        present: The families, in order of their first header.
        origin: The first family that names a topic, or the first family if none does.
        failure: The family of the last exception.
    """

    values: Mapping[str | None, list[bytes]]
    present: tuple[HeaderFamily, ...]
    origin: HeaderFamily
    failure: HeaderFamily

    def original_text(self, name: str | None) -> str | None:
        """Return the oldest header of this name, as text."""
        return read_text(self._oldest(name))

    def original_number(self, name: str | None) -> int | None:
        """Return the oldest header of this name, as a number."""
        return read_number(self._oldest(name), binary=self.origin.binary_numbers)

    def newest_text(self, names: Iterable[str | None]) -> str | None:
        """Return the newest value of the first of these names that the message has, as text."""
        for name in names:
            if name in self.values:
                return read_text(self.values[name][-1])
        return None

    def any_text(self, field: str) -> str | None:
        """Return a header's text from the failure's family, or else from the origin's, or else from any hop.

        Args:
            field: A field of `HeaderFamily` that holds a single header name.
        """
        families = (self.failure, self.origin, *self.present)
        return self.newest_text(getattr(family, field) for family in families)

    @property
    def who(self) -> str | None:
        """The asset or group that gave up on the record, from the last failure, or else from the origin."""
        families = (self.failure, self.origin)
        return self.newest_text(name for family in families for name in (family.asset, family.group))

    @property
    def topics(self) -> tuple[str, ...]:
        """The distinct original topics that the headers name."""
        named = [self.values.get(family.topic, ()) for family in self.present]
        return tuple(dict.fromkeys(read_text(value) or "" for values in named for value in values if value))

    def _oldest(self, name: str | None) -> bytes | None:
        return None if name not in self.values else self.values[name][0]


def find_hops(headers: Headers) -> Hops | None:
    """Return the families that left headers in a message. None if there are none."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    values: dict[str | None, list[bytes]] = {}
    for index, (name, value) in enumerate(headers):
        first.setdefault(name, index)
        last[name] = index
        if value is not None:
            values.setdefault(name, []).append(value)
    present = {}
    for family in header_families():
        positions = [first[name] for name in _names(family) if name in first]
        if positions:
            present[family.name] = (min(positions), family)
    if not present:
        return None
    ordered = [family for _, family in sorted(present.values(), key=lambda each: each[0])]
    named = [family for family in ordered if family.topic in first]
    origin = min(named, key=lambda f: first[f.topic or ""]) if named else ordered[0]

    def age(family: HeaderFamily) -> int:
        return max(last[name] for name in (*family.exceptions, *family.messages) if name in last)

    failing = [f for f in ordered if any(name in first for name in (*f.exceptions, *f.messages))]
    return Hops(values, tuple(ordered), origin, max(failing, key=age) if failing else origin)


def attempts_of(headers: Headers) -> int | None:
    """Return the number of redrives of a record, or else the attempts by other tools. None without such a header."""
    for names in ({ATTEMPTS_HEADER}, {family.attempts for family in header_families()}):
        counts = [read_number(value) for name, value in headers if name in names]
        known = [count for count in counts if count is not None]
        if known:
            return max(known)
    return None


def _names(family: HeaderFamily) -> list[str]:
    # Without the attempts header: other records than dead letters may have it, and two families share it.
    coordinates = (family.topic, family.partition, family.offset, family.timestamp)
    about = (family.cause, family.kind, family.asset, family.group, family.run)
    return [name for name in (*coordinates, *about, *family.exceptions, *family.messages) if name is not None]
