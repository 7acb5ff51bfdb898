"""Finds the innermost cause of a Spark error: the user's own exception, not Spark's wrapper.

Spark passes text to the driver, not exceptions: the traceback of a failed Python worker, the error condition and
SQLSTATE of a failed expression, and the JVM's stack trace for anything else. Spark Connect provides only these.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError

from kpipe_platform.policies.faults import Component, Fault, qualified_name

_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_LAST = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$", re.DOTALL)
_PYTHON_FILE = re.compile(r'^  File "([^"]+)"', re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^(?:Caused by: |: )?([\w.$]+(?:Error|Exception)): (.*)$", re.MULTILINE)
# The error text of a Connect client if the server did not respond.
_GRPC = re.compile(
    r'of RPC that terminated with:\s*status = StatusCode\.(\w+)\s*details = "(.*?)"\s*debug_error', re.DOTALL
)
_JVM_STACK = re.compile(r"\n+JVM stacktrace:\n.*", re.DOTALL)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
_CONTEXT = re.compile(r"\n== .*", re.DOTALL)


@dataclass(frozen=True)
class Cause:
    """Why a Spark job or a stage failed.

    Args:
        language: ``python`` (a UDF's or a stage's own exception), ``spark`` (an error condition) or ``java``.
        exception_type: Class of the exception.
        message: Message of the exception.
        condition: Spark's error condition, for example ``CAST_INVALID_INPUT``; None if there is none.
        sql_state: SQLSTATE of the condition; class 22 means a data error.
        where: Python traceback, or the call that Spark reports; None if both are unknown.
        file: File of the innermost Python frame.
    """

    language: str
    exception_type: str
    message: str
    condition: str | None = None
    sql_state: str | None = None
    where: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        """The cause in one line."""
        name = self.condition or self.exception_type
        if self.language == "java":
            name = name.rsplit(".", 1)[-1]
        first = self.message.strip().splitlines()[0] if self.message.strip() else ""
        return f"{name}: {first}"[:500] if first else name

    def fault(self, at_ms: int) -> Fault:
        """The cause as the fault of a single record."""
        kind = self.condition or self.exception_type.rsplit(".", 1)[-1]
        return Fault(Component.STAGE, kind, self.exception_type, self.message or kind, at_ms, stacktrace=self.where)


def text_of(error: BaseException) -> str:
    """The text of an exception, or its class if ``str()`` raises."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001  # a user's class may raise anything
        return f"{qualified_name(type(error))}, whose text cannot be made: {type(another).__name__}"


def cause_of(error: BaseException) -> Cause:
    """The innermost cause of an exception from Spark, or from a stage on the driver."""
    text = text_of(error)
    if not is_sparks(error):
        trace = error.__traceback__
        files = [frame.filename for frame in traceback.extract_tb(trace)]
        return Cause(
            "python",
            qualified_name(type(error)),
            text,
            where="".join(traceback.format_exception(type(error), error, trace)) if trace is not None else None,
            file=files[-1] if files else None,
        )
    # A Connect client's text repeats everything in its JVM stack trace, truncated.
    plain = _JVM_STACK.sub("", text)
    if _TRACEBACK in text:
        return _python(plain if _TRACEBACK in plain else text)
    answer = _GRPC.search(text)
    if answer is not None:
        return Cause("java", f"grpc.{answer.group(1)}", answer.group(2))
    condition = _asked(error, "getCondition")
    if condition is not None:
        context = _CONTEXT.search(plain)
        message = _SQLSTATE.sub("", _CONTEXT.sub("", plain)).strip()
        return Cause(
            "spark",
            type(error).__name__,
            message.removeprefix(f"[{condition}]").strip(),
            condition,
            _asked(error, "getSqlState"),
            where=context.group().strip() if context else None,
        )
    causes = _JAVA_CAUSE.findall(text)
    if causes:
        return Cause("java", causes[-1][0], causes[-1][1])
    return Cause("java", type(error).__name__, plain)


def _python(text: str) -> Cause:
    """Parse the exception at the end of a Python traceback in a text."""
    trace = text[text.rindex(_TRACEBACK) :]
    # A JVM stack trace may follow.
    trace = re.split(r"\n+\s*at [\w.$]+\(", trace, maxsplit=1)[0].rstrip()
    lines = trace.splitlines()
    last = next((i for i in range(1, len(lines)) if lines[i] and not lines[i][0].isspace()), None)
    match = _PYTHON_LAST.match("\n".join(lines[last:])) if last is not None else None
    files = _PYTHON_FILE.findall(trace)
    name, message = (match.group(1), match.group(2) or "") if match else ("Exception", lines[-1])
    return Cause("python", name, message, where=trace, file=files[-1] if files else None)


def _asked(error: BaseException, method: str) -> str | None:
    ask = getattr(error, method, None)
    return ask() if callable(ask) else None


def is_of_lost_java(error: BaseException) -> bool:
    """Whether PySpark, on the driver, lost its Java process, which has ended or was killed.

    PySpark then raises a py4j exception or a socket exception. Only the traceback distinguishes the latter from a
    socket exception of a service that a stage calls. If Java ends during a call, py4j raises the same exception as for
    a class or a method that does not exist, so the process itself is checked.
    """
    if isinstance(error, Py4JNetworkError):
        return True
    if type(error) is Py4JError:
        from kpipe_platform.spark._compat import has_jvm_ended

        return has_jvm_ended()
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, OSError) and bool(frames) and Path(frames[-1].filename).parent.name == "py4j"


def is_sparks(error: BaseException) -> bool:
    """Whether an exception comes from Spark (classic or Connect) and not from the user's code."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j", "grpc") or is_of_lost_java(error)
