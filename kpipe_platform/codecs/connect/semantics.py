"""Semantic types of Kafka Connect and Debezium: how a value is represented in a record, and the column that it becomes.

Each type converts a value in Python and in Spark by the same rules. Dates and times must be in the years 1 to 9999,
because Python has no others.

Source: Debezium's connector documentation, "Data type mappings"; Kafka Connect ``org.apache.kafka.connect.data``.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from abc import ABC, abstractmethod
from decimal import Context, Decimal
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
_DAY_S = 86_400
_MICROS = 1_000_000
_DECIMAL_BYTES = 16
_MAX_SCALE = 100
_EXACT = Context(prec=200)

_DATE = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?"
_ZONE = r"(?:Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))"


class UnfitError(ValueError):
    """A value cannot be represented in its column."""


class Semantic(ABC):
    """A semantic type.

    Attributes:
        names: Names of the type in the schema of a record.
        columns: Types of columns that a value can become, the usual one first.
        in_record: Type of the value in the record; None: that of the column.
    """

    names: tuple[str, ...]
    columns: tuple[type[T.DataType], ...]
    in_record: T.DataType | None = None

    def __init__(self, *names: str) -> None:
        self.names = names

    def physical(self, kind: T.DataType) -> T.DataType:
        """Type of the value in the record, for a column of the type ``kind``."""
        return self.in_record or kind

    @abstractmethod
    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Convert a value of a record, not null, to one of the column type ``kind``.

        Raises:
            UnfitError: The column cannot represent it.
        """

    @abstractmethod
    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Convert a value of a column, not null, to one of the record.

        Raises:
            UnfitError: The record cannot represent it.
        """

    @abstractmethod
    def column(self, value: Column, kind: T.DataType) -> Column:
        """The expression of `from_record`. Null if the column cannot represent the value."""


class Days(Semantic):
    """Days since 1970."""

    columns = (T.DateType,)
    in_record = T.IntegerType()

    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Return a date."""
        if not _FIRST_S <= value * _DAY_S <= _LAST_S:
            raise UnfitError(f"{value} days since 1970 is not in the years 1 to 9999")
        return _EPOCH.date() + dt.timedelta(days=value)

    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the number of days."""
        if not isinstance(value, dt.date):
            raise UnfitError(f"{type(value).__name__} is not a date")
        return value.toordinal() - _EPOCH.toordinal()

    def column(self, value: Column, kind: T.DataType) -> Column:
        """Return a DATE."""
        return F.when(value.between(_FIRST_S // _DAY_S, _LAST_S // _DAY_S), F.date_from_unix_date(value))


class TimeOfDay(Semantic):
    """Units since midnight, as the text HH:MM:SS with all digits of the fraction.

    Args:
        per_second: Units per second.
        names: Names of the type.
    """

    columns = (T.StringType,)

    def __init__(self, per_second: int, *names: str) -> None:
        super().__init__(*names)
        self._per_second = per_second
        self._digits = len(str(per_second)) - 1
        self.in_record = T.IntegerType() if per_second == 1_000 else T.LongType()
        self._text = re.compile(rf"([01][0-9]|2[0-4]):([0-5][0-9]):([0-5][0-9])(?:[.]([0-9]{{1,{self._digits}}}))?")

    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the text."""
        # PostgreSQL has a time 24:00:00.
        if not 0 <= value <= _DAY_S * self._per_second:
            raise UnfitError(f"{value} is not a time of day in units of 1/{self._per_second} s")
        seconds, fraction = divmod(value, self._per_second)
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:0{self._digits}}"

    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the number of units."""
        match = self._text.fullmatch(str(value))
        units = -1
        if match is not None:
            seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
            units = seconds * self._per_second + int((match[4] or "0").ljust(self._digits, "0"))
        if not 0 <= units <= _DAY_S * self._per_second:
            raise UnfitError(f"{str(value)[:40]!r} is not a time of day such as 04:05:11.789")
        return units

    def column(self, value: Column, kind: T.DataType) -> Column:
        """Return a STRING."""
        second, fraction = _div(value, self._per_second), F.pmod(value, F.lit(self._per_second))
        parts = [_div(second, 3600), F.pmod(_div(second, 60), F.lit(60)), F.pmod(second, F.lit(60))]
        text = F.format_string(f"%02d:%02d:%02d.%0{self._digits}d", *parts, fraction)
        return F.when(value.between(0, _DAY_S * self._per_second), text)


class Moment(Semantic):
    """Units since 1970. Nanoseconds are rounded down to microseconds.

    Args:
        per_second: Units per second.
        names: Names of the type.
    """

    columns = (T.TimestampNTZType, T.TimestampType)
    in_record = T.LongType()

    def __init__(self, per_second: int, *names: str) -> None:
        super().__init__(*names)
        self._per_second = per_second

    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Return a datetime, with the time zone UTC for a TIMESTAMP."""
        if not _FIRST_S <= value // self._per_second <= _LAST_S:
            raise UnfitError(f"{value} units of 1/{self._per_second} s since 1970 is not in the years 1 to 9999")
        moment = _EPOCH + dt.timedelta(microseconds=value * _MICROS // self._per_second)
        return moment if isinstance(kind, T.TimestampNTZType) else moment.replace(tzinfo=dt.timezone.utc)

    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the number of units, rounded down."""
        return _micros(value) * self._per_second // _MICROS

    def column(self, value: Column, kind: T.DataType) -> Column:
        """Return a TIMESTAMP or TIMESTAMP_NTZ."""
        first, end = _FIRST_S * self._per_second, (_LAST_S + 1) * self._per_second
        # A BIGINT of nanoseconds ends in 2262.
        fits = value.between(max(first, -(2**63)), min(end - 1, 2**63 - 1))
        micros = value * (_MICROS // self._per_second) if self._per_second <= _MICROS else _div(value, 1_000)
        return F.when(fits, _moment(F.when(fits, micros), kind))


class IsoDate(Semantic):
    """A date as ISO 8601 text, with or without Z."""

    columns = (T.DateType,)
    in_record = T.StringType()
    _TEXT = re.compile(f"{_DATE}Z?")

    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Return a date."""
        try:
            return dt.date.fromisoformat(_matched(self._TEXT, value, "a date such as 2017-09-15Z")[:10])
        except ValueError as error:
            raise UnfitError(str(error)) from None

    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the text with Z."""
        if not isinstance(value, dt.date):
            raise UnfitError(f"{type(value).__name__} is not a date")
        return f"{value.isoformat()[:10]}Z"

    def column(self, value: Column, kind: T.DataType) -> Column:
        """Return a DATE."""
        return F.when(value.rlike(_whole(self._TEXT)), F.substring(value, 1, 10).try_cast("date"))


class IsoMoment(Semantic):
    """A date and time with a zone as ISO 8601 text. Digits after the microsecond are dropped.

    Args:
        columns: Types of columns.
        names: Names of the type.
    """

    in_record = T.StringType()
    _TEXT = re.compile(f"({_DATE})T({_TIME})({_ZONE})")

    def __init__(self, columns: tuple[type[T.DataType], ...], *names: str) -> None:
        super().__init__(*names)
        self.columns = columns

    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Return a datetime, with the time zone UTC for a TIMESTAMP."""
        text = _matched(self._TEXT, value, "a time such as 2019-07-09T02:28:57.123456Z")
        match = self._TEXT.fullmatch(text)
        assert match is not None  # noqa: S101
        whole, _, fraction = match[2].partition(".")
        zone = "+00:00" if match[3] == "Z" else match[3]
        try:
            moment = dt.datetime.fromisoformat(f"{match[1]}T{whole}{zone}").astimezone(dt.timezone.utc)
        except (ValueError, OverflowError) as error:
            raise UnfitError(f"{text!r} is not in the years 1 to 9999, or not a day of the calendar") from error
        moment = moment.replace(microsecond=int(fraction[:6].ljust(6, "0")))
        return moment.replace(tzinfo=None) if isinstance(kind, T.TimestampNTZType) else moment

    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the text with Z."""
        return (_EPOCH + dt.timedelta(microseconds=_micros(value))).isoformat(timespec="microseconds") + "Z"

    def column(self, value: Column, kind: T.DataType) -> Column:
        """Return a TIMESTAMP or TIMESTAMP_NTZ."""
        micros = F.unix_micros(F.when(value.rlike(_whole(self._TEXT)), value).try_cast("timestamp"))
        fits = micros.between(_FIRST_S * _MICROS, (_LAST_S + 1) * _MICROS - 1)
        return F.when(fits, _moment(F.when(fits, micros), kind))


class ExactDecimal(Semantic):
    """The unscaled number as big-endian bytes. The schema has the scale, which must be that of the column."""

    columns = (T.DecimalType,)
    in_record = T.BinaryType()

    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Return a Decimal."""
        assert isinstance(kind, T.DecimalType)  # noqa: S101
        return _decimal(_unscaled(value), kind.scale, kind)

    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the bytes."""
        assert isinstance(kind, T.DecimalType)  # noqa: S101
        return _bytes(_number(value), kind.scale)

    def column(self, value: Column, kind: T.DataType) -> Column:
        """Return a DECIMAL."""
        assert isinstance(kind, T.DecimalType)  # noqa: S101
        return F.concat(_unscaled_column(value).cast("string"), F.lit(f"E-{kind.scale}")).try_cast(kind)


class VariableDecimal(Semantic):
    """A struct of the scale, and the unscaled number as big-endian bytes."""

    columns = (T.DecimalType,)
    in_record = T.StructType().add("scale", T.IntegerType()).add("value", T.BinaryType())

    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Return a Decimal."""
        assert isinstance(kind, T.DecimalType)  # noqa: S101
        scale, data = value.get("scale"), value.get("value")
        if scale is None or data is None:
            raise UnfitError("its scale or value is missing")
        if abs(scale) > _MAX_SCALE:
            raise UnfitError(f"its scale is {scale}, which is not between -{_MAX_SCALE} and {_MAX_SCALE}")
        return _decimal(_unscaled(data), scale, kind)

    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the struct, with the scale of the column."""
        assert isinstance(kind, T.DecimalType)  # noqa: S101
        return {"scale": kind.scale, "value": _bytes(_number(value), kind.scale)}

    def column(self, value: Column, kind: T.DataType) -> Column:
        """Return a DECIMAL."""
        assert isinstance(kind, T.DecimalType)  # noqa: S101
        scale, text = value["scale"], _unscaled_column(value["value"]).cast("string")
        zeros = F.length(text) - F.length(F.rtrim(text, F.lit("0")))
        exact = (text == "0") | (scale - zeros <= kind.scale)
        number = F.when(text == "0", text).otherwise(F.concat(text, F.lit("E"), (-scale).cast("string")))
        return F.when(scale.between(-_MAX_SCALE, _MAX_SCALE) & exact, number).try_cast(kind)


class PlainDecimal(Semantic):
    """A text or a number, by Debezium's ``decimal.handling.mode``, as the JSON codec reads a DECIMAL.

    Args:
        as_text: Whether it is written as a text.
        name: Name in ``types``; a record's schema has none.
    """

    columns = (T.DecimalType,)

    def __init__(self, name: str, *, as_text: bool) -> None:
        super().__init__(name)
        self._as_text = as_text

    def from_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the Decimal."""
        return Decimal(value.replace(",", "")) if isinstance(value, str) else Decimal(value)

    def to_record(self, value: Any, kind: T.DataType) -> Any:
        """Return the Decimal, or its text."""
        number = _number(value)
        return format(number, "f") if self._as_text else number

    def column(self, value: Column, kind: T.DataType) -> Column:
        """Return the DECIMAL."""
        return value


_MOMENTS = (T.TimestampNTZType, T.TimestampType)

SEMANTICS: dict[str, Semantic] = {
    name: semantic
    for semantic in (
        Days("io.debezium.time.Date", "org.apache.kafka.connect.data.Date"),
        TimeOfDay(1_000, "io.debezium.time.Time", "org.apache.kafka.connect.data.Time"),
        TimeOfDay(1_000_000, "io.debezium.time.MicroTime"),
        TimeOfDay(1_000_000_000, "io.debezium.time.NanoTime"),
        Moment(1_000, "io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp"),
        Moment(1_000_000, "io.debezium.time.MicroTimestamp"),
        Moment(1_000_000_000, "io.debezium.time.NanoTimestamp"),
        IsoMoment((T.TimestampType,), "io.debezium.time.ZonedTimestamp"),
        IsoMoment(_MOMENTS, "io.debezium.time.IsoTimestamp"),
        IsoDate("io.debezium.time.IsoDate"),
        ExactDecimal("org.apache.kafka.connect.data.Decimal"),
        VariableDecimal("io.debezium.data.VariableScaleDecimal"),
        PlainDecimal("STRING", as_text=True),
        PlainDecimal("FLOAT64", as_text=False),
    )
    for name in semantic.names
}
"""The semantic types by name."""


def _div(value: Column, divisor: int) -> Column:
    """Divide and round down; ``div`` rounds toward zero."""
    below = F.when((value < 0) & (value % F.lit(divisor) != 0), 1).otherwise(0)
    return F.call_function("div", value, F.lit(divisor)) - below


def _moment(micros: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.TimestampType):
        return F.timestamp_micros(micros)
    # A cast from TIMESTAMP would depend on the session's time zone.
    seconds = micros.cast("decimal(20,0)") / F.lit(_MICROS)
    interval = F.make_dt_interval(F.lit(0), F.lit(0), F.lit(0), seconds.cast("decimal(18,6)"))
    return F.lit("1970-01-01 00:00:00").cast("timestamp_ntz") + interval


def _micros(value: Any) -> int:
    if not isinstance(value, dt.datetime):
        raise UnfitError(f"{type(value).__name__} is not a date and time")
    moment = value.astimezone(dt.timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def _matched(pattern: re.Pattern[str], value: Any, example: str) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise UnfitError(f"{str(value)[:40]!r} is not {example}")
    return value


def _whole(pattern: re.Pattern[str]) -> str:
    return rf"\A(?:{pattern.pattern})\z"


def _unscaled(data: Any) -> int:
    # In JSON, bytes are base64.
    content = base64.b64decode(data) if isinstance(data, str) else bytes(data)
    if not 0 < len(content) <= _DECIMAL_BYTES:
        raise UnfitError(f"a decimal has 1 to {_DECIMAL_BYTES} bytes, not {len(content)}")
    return int.from_bytes(content, "big", signed=True)


def _decimal(unscaled: int, scale: int, kind: T.DecimalType) -> Decimal:
    number = Decimal(unscaled).scaleb(-scale, _EXACT)
    fitted = number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if fitted != number or len(fitted.as_tuple().digits) > kind.precision:
        raise UnfitError(f"{str(number)[:60]} does not fit {kind.simpleString()}")
    return fitted


def _number(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise UnfitError(f"{type(value).__name__} is not a decimal")
    return Decimal(value)


def _bytes(number: Decimal, scale: int) -> bytes:
    shifted = number.scaleb(scale, _EXACT) if number.is_finite() else number
    if not number.is_finite() or shifted != shifted.to_integral_value():
        raise UnfitError(f"{str(number)[:60]} has more than {scale} digits after the point")
    unscaled = int(shifted)
    # As Java's BigInteger.toByteArray: the fewest bytes that keep the sign.
    return unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)


def _unscaled_column(data: Column) -> Column:
    """The number as DECIMAL(38, 0); null if it has more digits."""
    digits = 2 * _DECIMAL_BYTES
    text = F.when(F.length(data).between(1, _DECIMAL_BYTES), F.hex(data))
    is_negative = F.substring(text, 1, 1) >= "8"
    full = F.when(is_negative, F.lpad(text, digits, "F")).otherwise(F.lpad(text, digits, "0"))
    high = F.conv(F.substring(full, 1, 16), 16, -10).cast("decimal(19,0)")
    low = F.conv(F.substring(full, 17, 16), 16, 10).cast("decimal(20,0)")
    half = F.lit(str(2**64)).cast("decimal(20,0)")

    def joined(high: Column, low: Column) -> Column:
        return F.try_add(F.try_multiply(high, half), low).try_cast("decimal(38,0)")

    # The complement of a negative number, because its upper half alone may have more than 38 digits.
    # It is subtracted, because Spark's unary minus keeps only 34 digits.
    complement = joined((F.lit(-1) - high).cast("decimal(19,0)"), (half - low - 1).cast("decimal(20,0)"))
    fits = complement < F.lit(str(10**38 - 1)).cast("decimal(38,0)")
    negative = F.when(fits, (F.lit(-1) - complement).cast("decimal(38,0)"))
    return F.when(is_negative, negative).otherwise(joined(high, low))
