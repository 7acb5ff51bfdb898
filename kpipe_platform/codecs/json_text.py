r"""JSON text as Spark's parser reads it.

Spark reads JSON with Jackson and takes somewhat more than the standard does: names and strings in single
quotes, ``\'``, and the words ``NaN``, ``Infinity``, ``+INF`` and their like. It refuses numbers of more than
1,000 digits, names of more than 50,000 characters, and, as kpipe sets it, what is nested deeper than 200 levels,
which Python can read too. Half of a surrogate pair, which Spark turns into a question mark, is a mistake here. Here is
the same language, with the place of the first mistake. Python's own parser, which is written in C, goes first; the
reader below looks only at what that one refuses.

Source: Spark ``JSONOptions`` (allowSingleQuotes, allowNonNumericNumbers) and Jackson
``StreamReadConstraints``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn, TypeAlias

MAX_DEPTH = 200
MAX_NUMBER_DIGITS = 1_000
MAX_NAME_CHARS = 50_000
MAX_EXACT_DIGITS = 38
"""Most digits of a number of which Spark's exact look sees each."""

# One language for Python and Java: the decoder looks by the same expressions, after two backslashes became blanks.
BACKSLASHES = "\\\\"
SURROGATE_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
SURROGATE = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"

# A number whose exponent has four digits or more; in the same language.
HUGE_NUMBER = r"[:\[, \t\r\n]-?[0-9]+(?:[.][0-9]+)?[eE][-+]?[0-9]{4,}[ \t\r\n]*[,\]}]"

_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_NUMBER_DIGITS // 2}}}")
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[+-]?[A-Za-z_][A-Za-z0-9_]*")
_WORDS = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    **{f"{sign}{name}": float("inf") for sign in ("", "+") for name in ("Infinity", "INF")},
    **{f"-{name}": float("-inf") for name in ("Infinity", "INF")},
}
del _WORDS["INF"]  # Jackson takes this one only with a sign
_CHUNKS = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]*") for quote in "\"'"}
_ESCAPES = {**{c: c for c in "\"'\\/"}, "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9A-Fa-f]{4}")


class JsonSyntaxError(ValueError):
    """The text is not JSON.

    Args:
        problem: What is wrong.
        text: The text.
        position: Where, in characters from 0.
    """

    def __init__(self, problem: str, text: str, position: int) -> None:
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        super().__init__(f"{problem} at line {line}, column {column} (character {position})")


class RepeatedNames(dict[str, Any]):
    """An object in which a name occurs more than once; as a dict it holds the last value of each name.

    Args:
        pairs: All names and values in their order.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class RoughNumber(Decimal):
    """A number with an exponent, or with more digits than `MAX_EXACT_DIGITS`: Spark's exact look sees a double."""


class HugeNumber(RoughNumber):
    """Zero or infinity as a double, in a text in which there is a `HUGE_NUMBER`."""


class _LongName(ValueError):
    """A name is too long; the reader says where."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if any(map(_is_long, found)):
        raise _LongName
    return found if len(found) == len(pairs) else RepeatedNames(pairs)


def _is_long(name: str) -> bool:
    # Java counts a character beyond U+FFFF as two.
    return len(name) > MAX_NAME_CHARS // 2 and len(name.encode("utf-16-le", "surrogatepass")) > 2 * MAX_NAME_CHARS


def _exact(text: str) -> Decimal | float:
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent beyond 18 digits
        return float(text)
    _, digits, exponent = number.as_tuple()
    if "e" in text or "E" in text or max(len(digits), -int(exponent)) > MAX_EXACT_DIGITS:
        return RoughNumber(number)
    return number


def _beside_huge(text: str) -> Decimal | float:
    number = _exact(text)
    if isinstance(number, RoughNumber) and abs(float(number)) in (0.0, float("inf")):
        return HugeNumber(number)
    return number


_HUGE_NUMBER = re.compile(HUGE_NUMBER)
_Fraction: TypeAlias = Callable[[str], "Decimal | float"]
_DECODERS: dict[_Fraction, json.JSONDecoder] = {
    fraction: json.JSONDecoder(object_pairs_hook=_object, parse_float=fraction)
    for fraction in (float, _exact, _beside_huge)
}


def read_json(text: str, *, exact: bool = False) -> tuple[Any, int]:
    """Read the first JSON value of a text.

    Args:
        text: The text; white space before the value is skipped.
        exact: Give numbers with a fraction or an exponent as `Decimal`, so that no digit is lost.

    Returns:
        The value, and the position behind it. NaN and infinities come as floats.

    Raises:
        JsonSyntaxError: There is no value, or it is not JSON.
    """
    start = _skip(text, 0)
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(text)
    fraction: _Fraction = float
    if exact:
        fraction = _exact if _HUGE_NUMBER.search(text) is None else _beside_huge
    if len(text) < MAX_NUMBER_DIGITS or _LONG_NUMBER.search(text) is None:
        try:
            value, end = _DECODERS[fraction].raw_decode(text, start)
        except (ValueError, RecursionError):
            pass  # the reader says why, or takes it
        else:
            if text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH:
                _check_depth(text, end)
            return value, end
    return _Reader(text, fraction).value(start)


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _check_surrogates(text: str) -> None:
    paired = re.sub(SURROGATE_PAIR, lambda pair: " " * len(pair.group()), text.replace(BACKSLASHES, "  "))
    half = re.search(SURROGATE, paired)
    if half is not None:
        raise JsonSyntaxError(f"half of a surrogate pair, {half.group()},", text, half.start())


def _check_depth(text: str, end: int) -> None:
    depth = 0
    for match in _NESTING.finditer(text, 0, end):
        mark = match.group()
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep(text, match.start())
        elif mark in "]}":
            depth -= 1


def _too_deep(text: str, position: int) -> JsonSyntaxError:
    return JsonSyntaxError(f"nested deeper than {MAX_DEPTH:,} levels", text, position)


class _Reader:
    """Reads one value after another from the text; each method takes a position and gives the one behind."""

    def __init__(self, text: str, fraction: _Fraction) -> None:
        self.text = text
        self.fraction = fraction
        self.depth = 0

    def value(self, position: int) -> tuple[Any, int]:
        start = self.text[position : position + 1]
        if start in ("{", "["):
            if self.depth == MAX_DEPTH:
                raise _too_deep(self.text, position)
            self.depth += 1
            found: tuple[Any, int] = (self._object if start == "{" else self._array)(position + 1)
            self.depth -= 1
            return found
        if start in ('"', "'"):
            return self._string(position)
        number = _NUMBER.match(self.text, position)
        if number is not None:
            return self._number(number), number.end()
        word = _WORD.match(self.text, position)
        if word is not None and word.group() in _WORDS:
            return _WORDS[word.group()], word.end()
        return self._fail("expected a value", position)

    def _number(self, match: re.Match[str]) -> Any:
        text = match.group()
        if sum(map(str.isdigit, text)) > MAX_NUMBER_DIGITS:
            raise JsonSyntaxError(f"a number of more than {MAX_NUMBER_DIGITS:,} digits", self.text, match.start())
        if match.group(2) is None and match.group(3) is None:
            return int(text)
        return self.fraction(text)

    def _object(self, position: int) -> tuple[dict[str, Any], int]:
        pairs: list[tuple[str, Any]] = []
        position = _skip(self.text, position)
        if self.text.startswith("}", position):
            return {}, position + 1
        while True:
            if self.text[position : position + 1] not in ('"', "'"):
                self._fail("expected a field name in quotes", position)
            opened = position
            name, position = self._string(position)
            if _is_long(name):
                raise JsonSyntaxError(f"a name of more than {MAX_NAME_CHARS:,} characters", self.text, opened)
            position = _skip(self.text, position)
            if not self.text.startswith(":", position):
                self._fail("expected ':'", position)
            value, position = self.value(_skip(self.text, position + 1))
            pairs.append((name, value))
            position = _skip(self.text, position)
            if self.text.startswith("}", position):
                return _object(pairs), position + 1
            if not self.text.startswith(",", position):
                self._fail("expected ',' or '}'", position)
            position = _skip(self.text, position + 1)

    def _array(self, position: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        position = _skip(self.text, position)
        if self.text.startswith("]", position):
            return values, position + 1
        while True:
            value, position = self.value(position)
            values.append(value)
            position = _skip(self.text, position)
            if self.text.startswith("]", position):
                return values, position + 1
            if not self.text.startswith(",", position):
                self._fail("expected ',' or ']'", position)
            position = _skip(self.text, position + 1)

    def _string(self, position: int) -> tuple[str, int]:
        opened, quote = position, self.text[position]
        parts: list[str] = []
        position += 1
        while True:
            chunk = _CHUNKS[quote].match(self.text, position)
            if chunk is not None:
                parts.append(chunk.group())
                position = chunk.end()
            found = self.text[position : position + 1]
            if found == quote:
                # Halves of a surrogate pair that were escaped one by one become one character.
                joined = "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
                return joined, position + 1
            if found == "":
                raise JsonSyntaxError("a string that does not end", self.text, opened)
            if found != "\\":
                self._fail("a control character in a string, not escaped", position)
            part, position = self._escape(position)
            parts.append(part)

    def _escape(self, position: int) -> tuple[str, int]:
        letter = self.text[position + 1 : position + 2]
        if letter == "u":
            digits = _HEX.match(self.text, position + 2)
            if digits is not None:
                return chr(int(digits.group(), 16)), position + 6
        elif letter in _ESCAPES:
            return _ESCAPES[letter], position + 2
        return self._fail("an escape that JSON does not know", position)

    def _fail(self, problem: str, position: int) -> NoReturn:
        found = self.text[position : position + 12]
        shown = f"found {found!r}" if found else "found the end of the text"
        raise JsonSyntaxError(f"{problem}, {shown}", self.text, position)
