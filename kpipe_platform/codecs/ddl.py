"""Parse Spark DDL into PySpark's types: ``dep_time INT NOT NULL, legs ARRAY<STRUCT<code: STRING>>``.

Spark's own parser needs a running session, but schemas are declared before there is one.

Source: the rule ``colTypeList`` of Spark's SQL grammar.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NoReturn

from pyspark.sql import types as T

from kpipe_platform.codecs.types import SCALARS
from kpipe_platform.errors import ConfigError

MAX_PRECISION = 38
"""Maximum number of digits of a decimal in Spark."""

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<quoted>`(?:[^`]|``)*`)
    | (?P<word>[A-Za-z0-9_]+)
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<mark>[<>(),:])
    | (?P<wrong>\S)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NESTED = frozenset({"array", "map", "struct"})
_END = "end"
# Messages use the first name of each type.
_NAMES = {kind: name for name, kind in reversed(SCALARS.items())}
_EXAMPLE = "write fields as \"name TYPE [NOT NULL] [COMMENT 'text']\", separated by commas"


@lru_cache(maxsize=256)
def parse_ddl(ddl: str) -> T.StructType:
    """Parse the fields of a record. The result is cached: do not change it.

    Args:
        ddl: Spark DDL: ``a INT, b STRING NOT NULL``, or the same inside ``STRUCT<...>``. Type names are not
            case-sensitive. Field names that are not plain words need backquotes.

    Returns:
        The fields in their order. ``nullable`` is false for NOT NULL. A comment becomes the metadata ``comment``.

    Raises:
        ConfigError: The text is not valid DDL, a type is unknown, or a name occurs twice. The message
            contains the position, counted from 1.
    """
    return _Parser(ddl).parse()


class _Parser:
    """Recursive-descent parser with one method for each rule. ``self.kind`` and ``self.text`` are the current token."""

    def __init__(self, ddl: str) -> None:
        self.ddl = ddl
        self.start = 0
        self.end = 0
        self.kind = _END
        self.text = ""
        self._next()

    def parse(self) -> T.StructType:
        if self.kind == _END:
            self._fail("the schema is empty", _EXAMPLE)
        if self._is_word("struct") and self.ddl[self.end :].lstrip().startswith("<"):
            self._next()
            fields = self._fields(closing=">")
            if not fields:
                self._fail("the schema is empty", _EXAMPLE)
        else:
            fields = self._fields(closing=None)
        if self.kind != _END:
            self._fail(f"expected ',' or the end, found {self.text!r}", _EXAMPLE)
        return T.StructType(fields)

    def _fields(self, *, closing: str | None) -> list[T.StructField]:
        if closing is not None:
            self._expect("<")
            if self._take(closing):
                return []  # a Protobuf message type without fields
        fields: list[T.StructField] = []
        names: set[str] = set()
        while True:
            start = self.start
            field = self._field()
            if field.name in names:
                self.start = start
                self._fail(f"field {field.name!r} is declared twice", "give each field a different name")
            names.add(field.name)
            fields.append(field)
            if not self._take(","):
                break
        if closing is not None:
            self._expect(closing)
        return fields

    def _field(self) -> T.StructField:
        name = self._name()
        self._take(":")
        kind = self._type()
        required = False
        if self._is_word("not"):
            self._next()
            if not self._is_word("null"):
                self._fail(f"expected NULL after NOT, found {self._found()}", "write NOT NULL")
            self._next()
            required = True
        comment = {}
        if self._is_word("comment"):
            self._next()
            if self.kind != "text":
                self._fail(f"expected a quoted text after COMMENT, found {self._found()}", "write COMMENT '...'")
            comment["comment"] = _unquoted(self.text)
            self._next()
        return T.StructField(name, kind, not required, comment)

    def _name(self) -> str:
        if self.kind == "quoted" and len(self.text) > 2:
            name = self.text[1:-1].replace("``", "`")
        elif self.kind == "word" and not self.text.isdigit():
            name = self.text
        else:
            fix = "put a name that is not a plain word in backquotes: `dep-time`"
            self._fail(f"expected a field name, found {self._found()}", fix)
        self._next()
        return name

    def _type(self) -> T.DataType:
        name = self.text.lower()
        if self.kind != "word" or (name not in SCALARS and name not in _NESTED):
            known = ", ".join(sorted({*_NAMES.values(), *_NESTED}))
            fix = f"use one of {known}; a name with - or . needs backquotes"
            self._fail(f"expected a type, found {self._found()}", fix)
        start = self.start
        self._next()
        if name == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return T.ArrayType(element)
        if name == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return T.MapType(key, value)
        if name == "struct":
            return T.StructType(self._fields(closing=">"))
        arguments = self._arguments()
        self.start, after = start, self.start
        kind = self._scalar(name, arguments)
        self.start = after
        return kind

    def _arguments(self) -> tuple[int, ...]:
        numbers: list[int] = []
        if self._take("("):
            while True:
                if self.kind != "word" or not self.text.isdigit():
                    self._fail(f"expected a number, found {self._found()}", "write DECIMAL(10,2) or VARCHAR(20)")
                numbers.append(int(self.text))
                self._next()
                if not self._take(","):
                    break
            self._expect(")")
        return tuple(numbers)

    def _scalar(self, name: str, arguments: tuple[int, ...]) -> T.DataType:
        kind = SCALARS[name]
        if kind is T.DecimalType:
            precision, scale = (*arguments, *(10, 0)[len(arguments) :])[:2]
            if len(arguments) > 2 or not 1 <= precision <= MAX_PRECISION or scale > precision:
                fix = f"write DECIMAL(precision, scale), with 1 to {MAX_PRECISION} digits and a scale up to precision"
                self._fail(f"invalid precision and scale {arguments} of a decimal", fix)
            return T.DecimalType(precision, scale)
        if kind in (T.VarcharType, T.CharType):
            if len(arguments) != 1 or arguments[0] < 1:
                self._fail(f"{_NAMES[kind]} needs a length", f"write {_NAMES[kind].upper()}(20), or STRING")
            return T.VarcharType(*arguments) if kind is T.VarcharType else T.CharType(*arguments)
        if arguments:
            self._fail(f"{_NAMES[kind]} takes no argument", f"write {_NAMES[kind].upper()}")
        return kind()

    def _is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word

    def _take(self, mark: str) -> bool:
        if self.kind == "mark" and self.text == mark:
            self._next()
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            self._fail(f"expected {mark!r}, found {self._found()}", _EXAMPLE)

    def _found(self) -> str:
        return "the end" if self.kind == _END else repr(self.text)

    def _next(self) -> None:
        match = _TOKEN.match(self.ddl, self.end)
        if match is None or match.lastgroup is None:
            self.kind, self.text, self.start, self.end = _END, "", len(self.ddl), len(self.ddl)
            return
        self.kind = match.lastgroup
        self.text = match.group(self.kind)
        self.start, self.end = match.start(self.kind), match.end()

    def _fail(self, problem: str, fix: str) -> NoReturn:
        position = self.start + 1
        msg = f"schema: {problem} at position {position} of {self.ddl!r}"
        raise ConfigError(msg, fix=fix, position=position, schema=self.ddl)


def _unquoted(text: str) -> str:
    quote = text[0]
    return re.sub(r"\\(.)", r"\1", text[1:-1].replace(quote * 2, quote), flags=re.DOTALL)
