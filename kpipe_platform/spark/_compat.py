"""The private interfaces of PySpark that kpipe uses because PySpark 4.2 has no public equivalent.

No other module of the package uses a private name of PySpark. ``kpipe_platform_tests/spark/test_compat.py`` tests the
behavior that kpipe relies on and names the PySpark version. It fails first when PySpark is upgraded.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark import SparkContext, cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type

# Modules that need the extra ``connect`` are imported by the functions that use them.

__all__ = [
    "alias_of",
    "analyzed",
    "asks_for_another_token",
    "child_of",
    "cloudpickle",
    "column_names_of",
    "column_of",
    "columns_of",
    "connect_builder",
    "connect_expressions",
    "connect_plan",
    "connect_plans",
    "distinct_function",
    "expression_of",
    "extraction_of",
    "forget_jvm",
    "frame_of",
    "from_arrow_schema",
    "function_name",
    "has_jvm_ended",
    "has_own_spark",
    "is_cache_filled",
    "is_star",
    "java_session",
    "jvm",
    "jvm_gateway",
    "jvm_process",
    "leaves_of",
    "literal_of",
    "metadata_of",
    "renames_of",
    "retry_briefly",
    "run_worker_daemon",
    "send_by_value",
    "sql_of",
    "stand_in",
    "to_arrow_schema",
    "to_arrow_type",
]

# ------------------------------------------------------------------------------------------- objects for the workers

_BY_VALUE: set[str] = set()


def send_by_value(module: ModuleType) -> None:
    """Have the classes and functions of a module sent to Spark's workers, which need not have the module."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    _BY_VALUE.add(module.__name__)


def _reduce_cached(function: Any) -> Any:
    if function.__module__ not in _BY_VALUE:
        return function.__reduce__()
    return _cached_again, (function.__wrapped__, function.cache_parameters())


def _cached_again(function: Any, parameters: Any) -> Any:
    return lru_cache(**parameters)(function)


# cloudpickle sends a function with an lru_cache by name only.
cloudpickle.Pickler.dispatch_table[type(lru_cache(len))] = _reduce_cached

# ------------------------------------------------------------------------------------------- a JVM of this process


def jvm_gateway() -> Any:
    """py4j's gateway to this process's JVM; None if there is none."""
    return getattr(SparkContext, "_gateway", None)


def jvm_process() -> Any:
    """The process of the JVM that PySpark started; None if there is none. PySpark does not wait for its end."""
    return getattr(jvm_gateway(), "proc", None)


def has_jvm_ended() -> bool:
    """Whether the JVM that PySpark started has ended. Waits up to a second, because its connections close first."""
    process = jvm_process()
    if process is None:
        return False
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        return False
    return True


def forget_jvm() -> None:
    """Let PySpark start another JVM for this process's next session. It would use the ended one."""
    SparkContext._gateway = SparkContext._jvm = None


def has_own_spark() -> bool:
    """Whether this process runs a Spark driver. The public ways to find out start one, or see only one thread."""
    return getattr(SparkContext, "_active_spark_context", None) is not None


def jvm(session: SparkSession) -> Any:
    """Names of classes in the JVM."""
    return session._jvm


def java_session(session: SparkSession) -> Any:
    """The JVM's session.

    Its ``newSession`` is not the public one, which also makes ``RDD.toDF`` of all sessions use the new session.
    """
    return session._jsparkSession


def analyzed(frame: DataFrame) -> Any:
    """A DataFrame's analyzed plan, an object of Catalyst."""
    return frame._jdf.queryExecution().analyzed()


# The JVM's Dataset class, cached for each session of this process: py4j resolves each part of its name with a JVM call.
_DATASETS: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """Make a DataFrame from a plan in this process's JVM."""
    if session not in _DATASETS:
        _DATASETS[session] = jvm(session).org.apache.spark.sql.classic.Dataset
    return DataFrame(_DATASETS[session].ofRows(java_session(session), plan), session)


def is_cache_filled(frame: DataFrame) -> bool:
    """Whether a job has filled a frame's cache. ``DataFrame.is_cached`` is True before."""
    cached = java_session(frame.sparkSession).sharedState().cacheManager().lookupCachedData(frame._jdf)
    return bool(cached.isDefined()) and cached.get().cachedRepresentation().cacheBuilder().isCachedColumnBuffersLoaded()


def run_worker_daemon() -> None:
    """Run Spark's Python daemon, after importing what tasks with Arrow and pandas need."""
    import pandas  # noqa: F401
    import pyspark.sql.pandas.serializers  # noqa: F401
    from pyspark.daemon import manager

    manager()


# --------------------------------------------------------------------------------------- a client of Spark Connect


def connect_builder(channel_builder: Any) -> Any:
    """A builder of sessions over a channel of kpipe's own. The public ``SparkSession.builder`` accepts only a URL."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    # PySpark's own builder sets this too: from now on this process cannot start its own Spark.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    return ConnectSession.builder.channelBuilder(channel_builder)


def retry_briefly(session: Any, retries: int, max_backoff_ms: int) -> None:
    """Limit how long a session retries. By default it retries for ten minutes if a server is gone."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=retries, max_backoff=max_backoff_ms)])


def asks_for_another_token(error: Exception) -> bool:
    """Whether a server rejects a client's token."""
    import grpc
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    if not isinstance(error, SparkConnectGrpcException):
        return False
    return error.getGrpcStatusCode() is grpc.StatusCode.UNAUTHENTICATED


# A client holds its plan as Python objects. A server's public answer, `DataFrame.explain`, is text.


def connect_plan(frame: DataFrame) -> Any:
    """The plan that a client built for a DataFrame."""
    return cast("Any", frame)._plan


def connect_plans() -> ModuleType:
    """The classes of plans: Project, WithColumns, Filter, Drop, WithColumnsRenamed, SubqueryAlias, LocalRelation."""
    from pyspark.sql.connect import plan

    return plan


def connect_expressions() -> ModuleType:
    """The classes of expressions."""
    from pyspark.sql.connect import expressions

    return expressions


def leaves_of(plan: Any) -> Iterator[Any]:
    """The leaves of a client's plan."""
    kind = connect_plans().LogicalPlan
    below = [each for each in vars(plan).values() if isinstance(each, kind)]
    if not below:
        yield plan
    for each in below:
        yield from leaves_of(each)


def stand_in(frame: DataFrame, plan: Any) -> None:
    """Give a frame the id of the plan that it replaces, so that references such as ``orders.amount`` resolve."""
    connect_plan(frame)._root_plan_id = plan._root_plan_id


def child_of(node: Any) -> Any:
    """What is below a plan; what is inside an alias or an extraction."""
    return node._child


def columns_of(plan: Any) -> Sequence[Any]:
    """Columns of a Project, a WithColumns or a Drop."""
    return cast("Sequence[Any]", plan._columns)


def column_names_of(plan: Any) -> Sequence[str]:
    """Names of the columns of a WithColumns."""
    return cast("Sequence[str]", plan._columnNames)


def renames_of(plan: Any) -> Mapping[str, str]:
    """New names of a WithColumnsRenamed, by the old ones."""
    return dict(plan._colsMap)


def alias_of(node: Any) -> Any:
    """The alias of a SubqueryAlias, a text; the names of a ColumnAlias, a sequence."""
    return node._alias


def metadata_of(alias: Any) -> Any:
    """The metadata of a ColumnAlias; None if it has none."""
    return alias._metadata


def expression_of(column: Any) -> Any:
    """The expression of a column."""
    return column._expr


def column_of(expression: Any) -> Column:
    """The column of an expression."""
    from pyspark.sql.connect.column import Column as ConnectColumn

    return cast("Column", ConnectColumn(expression))


def is_star(expression: Any) -> bool:
    """Whether an expression is a star that selects all columns."""
    return type(expression) is connect_expressions().UnresolvedStar and expression._unparsed_target is None


def function_name(function: Any) -> str:
    """Name of an UnresolvedFunction."""
    return cast("str", function._name)


def distinct_function(function: Any) -> bool:
    """Whether an UnresolvedFunction is of distinct values."""
    return cast("bool", function._is_distinct)


def sql_of(expression: Any) -> str:
    """Text of a SQLExpression."""
    return cast("str", expression._expr)


def extraction_of(expression: Any) -> Any:
    """What an UnresolvedExtractValue extracts: an expression."""
    return expression._extraction


def literal_of(expression: Any) -> Any:
    """Value of a LiteralExpression."""
    return expression._value
