r"""Parse JSON text as Spark's parser does.

The text is parsed with Python's own parser, which is written in C. Spark's parser, Jackson, accepts more than standard
JSON: names and strings in single quotes, ``\'``, and the words ``+INF``, ``-INF`` and ``+Infinity``. A text that
Python's parser refuses is therefore rewritten as standard JSON and parsed again. Spark refuses numbers of
more than 1,000 digits, names of more than 50,000 characters, and, as kpipe configures it, nesting deeper than 200
levels; these limits are checked first. A lone surrogate, which Spark replaces with a question mark, is refused.

Source: Spark ``JSONOptions`` (allowSingleQuotes, allowNonNumericNumbers) and Jackson
``StreamReadConstraints``.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_DEPTH = 200
MAX_NUMBER_DIGITS = 1_000
MAX_NAME_CHARS = 50_000
MAX_EXACT_DIGITS = 38
"""Maximum number of digits that Spark's variant type keeps. A number with more digits becomes a double."""

# These expressions are valid in Python and in Java, because Spark's decoder uses them too. Both replace double
# backslashes with blanks first.
BACKSLASHES = "\\\\"
SURROGATE_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
SURROGATE = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"

# A number whose exponent has four digits or more. This expression is also valid in both languages.
HUGE_NUMBER = r"[:\[, \t\r\n]-?[0-9]+(?:[.][0-9]+)?[eE][-+]?[0-9]{4,}[ \t\r\n]*[,\]}]"

# A complete string, or the rest of the text if a string is not terminated.
_STRING = r""""[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'|["'].*"""
_LIMITED = re.compile(rf"(?P<string>{_STRING})(?P<colon>\s*:)?|(?P<number>[0-9][0-9.eE+-]*)|[\[{{\]}}]", re.DOTALL)
# A number has up to three parts, so one with too many digits has at least a third of them in one part.
_LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_NUMBER_DIGITS // 3}}}")
_BESIDE_STANDARD = re.compile(rf"{_STRING}|(?<![^\s:,\[])[+-](?:INF|Infinity)\b", re.DOTALL)
_ESCAPE_OR_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_WORDS = {"+INF": "Infinity", "+Infinity": "Infinity", "-INF": "-Infinity"}
_ESCAPES = {r"\'": "'", '"': r"\""}
_SPACE = re.compile(r"[ \t\r\n]*")


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
    """An object in which a name occurs more than once. As a dict, it has the last value of each name.

    Args:
        pairs: All names and values in their order.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class RoughNumber(Decimal):
    """A number with an exponent, or with more digits than `MAX_EXACT_DIGITS`: a double in Spark's variant type."""


class HugeNumber(RoughNumber):
    """A number that is zero or infinity as a double, in a text that contains a `HUGE_NUMBER`."""


def read_json(text: str) -> tuple[Any, int]:
    """Parse the first JSON value of a text.

    Args:
        text: The text. White space before the value is skipped.

    Returns:
        The value, and the position after it. Numbers with a fraction or an exponent are `Decimal`, so that no digit
        is lost. NaN, infinities and numbers whose exponent has more than 18 digits are float.

    Raises:
        JsonSyntaxError: The text has no value, or is not JSON.
    """
    _check_surrogates(text)
    _check_limits(text)
    decoder = _DECODERS[_HUGE_NUMBER.search(text) is not None]
    try:
        return decoder.raw_decode(text, _skip(text))
    except json.JSONDecodeError:
        pass
    standard, ends = _standardized(text)
    try:
        value, end = decoder.raw_decode(standard, _skip(standard))
    except json.JSONDecodeError as error:
        position = _original_position(error.pos, ends)
        rest = text[position : position + 12]
        problem = error.msg.removesuffix(" at").removesuffix(" starting")
        found = f"found {rest!r}" if rest else "found the end of the text"
        raise JsonSyntaxError(f"{problem}, {found}", text, position) from None
    return value, _original_position(end, ends)


def _skip(text: str) -> int:
    match = _SPACE.match(text)
    return 0 if match is None else match.end()


def _check_surrogates(text: str) -> None:
    if "\\ud" not in text and "\\uD" not in text:
        return
    paired = re.sub(SURROGATE_PAIR, lambda pair: " " * len(pair.group()), text.replace(BACKSLASHES, "  "))
    lone = re.search(SURROGATE, paired)
    if lone is not None:
        raise JsonSyntaxError(f"lone surrogate {lone.group()}", text, lone.start())


def _check_limits(text: str) -> None:
    is_deep = text.count("[") + text.count("{") > MAX_DEPTH
    # A character above U+FFFF counts as two in Java.
    if not is_deep and len(text) <= MAX_NAME_CHARS // 2 and _LONG_NUMBER.search(text) is None:
        return
    depth = 0
    for match in _LIMITED.finditer(text):
        problem = None
        if match["number"]:
            if sum(map(str.isdigit, match["number"])) > MAX_NUMBER_DIGITS:
                problem = f"a number of more than {MAX_NUMBER_DIGITS:,} digits"
        elif match["string"]:
            if match["colon"] and _is_long(match["string"]):
                problem = f"a name of more than {MAX_NAME_CHARS:,} characters"
        else:
            depth += 1 if match.group() in "[{" else -1
            if depth > MAX_DEPTH:
                problem = f"nested deeper than {MAX_DEPTH:,} levels"
        if problem is not None:
            raise JsonSyntaxError(problem, text, match.start())


def _is_long(string: str) -> bool:
    if len(string) <= MAX_NAME_CHARS // 2:
        return False
    try:
        name: str = json.loads(_standard(string))
    except json.JSONDecodeError:
        return False
    return len(name.encode("utf-16-le", "surrogatepass")) > 2 * MAX_NAME_CHARS


def _standardized(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Rewrite a text as standard JSON.

    Returns:
        The new text, and the end of each string or word as a pair of positions: in the new text and in the original.
    """
    ends = [(0, 0)]

    def piece(match: re.Match[str]) -> str:
        made = _standard(match.group())
        end, original = ends[-1]
        ends.append((end + match.start() - original + len(made), match.end()))
        return made

    return _BESIDE_STANDARD.sub(piece, text), ends


def _standard(piece: str) -> str:
    if piece[0] not in "\"'":
        return _WORDS.get(piece, piece)
    if len(piece) == 1 or piece[0] != piece[-1]:
        return piece  # a string that is not terminated
    inside = _ESCAPE_OR_QUOTE.sub(lambda match: _ESCAPES.get(match.group(), match.group()), piece[1:-1])
    return f'"{inside}"'


def _original_position(position: int, ends: list[tuple[int, int]]) -> int:
    end, original = max(pair for pair in ends if pair[0] <= position)
    return original + position - end


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else RepeatedNames(pairs)


def _exact(text: str) -> Decimal | float:
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
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
_DECODERS = {
    is_beside_huge: json.JSONDecoder(object_pairs_hook=_object, parse_float=fraction)
    for is_beside_huge, fraction in ((False, _exact), (True, _beside_huge))
}
