"""What ``spark/_compat.py`` relies on in PySpark's private interfaces. Fails first when PySpark is upgraded."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession, is_remote
from pyspark.sql import functions as F
from pyspark.sql import types as T

import kpipe_platform
from kpipe_platform.spark import _compat
from kpipe_platform_tests.processes import wait_until

PACKAGE = Path(kpipe_platform.__file__).parent

# After an upgrade: run this file and sink/test_single_pass.py, the latter also with KPIPE_TEST_SPARK=connect. Read the
# release notes for what _compat.py uses, and write the new version here.
PYSPARK = "4.2.0"


def test_the_contracts_below_were_checked_with_this_version_of_pyspark() -> None:
    assert pyspark.__version__ == PYSPARK


# ------------------------------------------------------------------------------------------- in no other module

# Modules whose names have no underscore, but that are not in PySpark's reference.
UNDOCUMENTED = (
    "py4j",
    "pyspark.cloudpickle",
    "pyspark.core",
    "pyspark.daemon",
    "pyspark.errors.exceptions",
    "pyspark.java_gateway",
    "pyspark.serializers",
    "pyspark.sql.classic",
    "pyspark.sql.connect",
    "pyspark.sql.pandas",
    "pyspark.sql.utils",
    "pyspark.util",
    "pyspark.worker",
)
# The documented way to a gRPC channel of one's own, and two exceptions of py4j's reference.
ALLOWED = {
    "pyspark.sql.connect.client.DefaultChannelBuilder",
    "py4j.protocol.Py4JError",
    "py4j.protocol.Py4JNetworkError",
}


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def own_names(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines or imports from elsewhere in the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def private_names(path: Path) -> Iterator[str]:
    """Private names of PySpark that a module uses: modules that it imports, and attributes of others' objects."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = list(imported(tree))
    if not any(name.split(".")[0] in ("pyspark", "py4j") for name in names) and "spark" not in path.parts:
        return
    yield from (name for name in names if f"{name}.".startswith(tuple(f"{each}." for each in UNDOCUMENTED)))
    yield from (name for name in names if name.startswith(("pyspark", "py4j")) and "._" in name)
    own = set(own_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if of not in ("self", "cls", "KafkaError") and node.attr not in own:
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and str(name.value).startswith("_") and "__" not in str(name.value):
                yield ast.unparse(node)


def test_no_other_module_uses_what_is_private() -> None:
    paths = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "examples").rglob("*.py")]
    found = {
        str(path.relative_to(PACKAGE.parent)): names for path in paths if (names := {*private_names(path)} - ALLOWED)
    }
    assert found.pop("kpipe_platform/spark/_compat.py")
    assert found == {}


# ------------------------------------------------------------------------------------------- a JVM of this process


@pytest.fixture
def classic(spark: SparkSession) -> SparkSession:
    if is_remote():
        pytest.skip("for a session of this process")
    return spark


@pytest.mark.spark
def test_this_process_has_a_jvm_and_a_driver(classic: SparkSession) -> None:
    assert _compat.has_own_spark()
    assert _compat.jvm_gateway() is classic.sparkContext._gateway
    assert _compat.jvm_process().poll() is None
    assert _compat.jvm(classic).java.lang.Math.max(1, 2) == 2


ENDING = """
from pyspark.sql import SparkSession
from kpipe_platform.spark import _compat

assert (_compat.jvm_gateway(), _compat.jvm_process(), _compat.has_own_spark()) == (None, None, False)
for _ in range(2):
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    process = _compat.jvm_process()
    session.stop()
    assert not _compat.has_own_spark()
    process.stdin.close()
    process.wait(60)
    _compat.forget_jvm()
    assert _compat.jvm_process() is None
print("started twice")
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_jvm_ends_with_its_pipe_and_another_starts_after_it_is_forgotten(classic: SparkSession) -> None:
    answer = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=False, timeout=280)
    assert answer.stdout == "started twice\n", answer.stderr


@pytest.mark.spark
def test_a_plan_of_another_session_is_a_frame_of_this_one(classic: SparkSession) -> None:
    other = _compat.java_session(classic).newSession()
    other.conf().set("spark.sql.shuffle.partitions", "3")
    frame = _compat.frame_of(classic, other.range(3).queryExecution().analyzed())
    assert frame.sparkSession is classic
    assert [row.id for row in frame.where("id > 0").collect()] == [1, 2]
    assert classic.conf.get("spark.sql.shuffle.partitions") != "3"
    assert _compat.analyzed(frame.where("id > 0")).nodeName() == "Filter"


@pytest.mark.spark
def test_only_a_private_name_says_that_a_cache_is_filled(classic: SparkSession) -> None:
    frame = classic.range(3).select((F.col("id") * 2).alias("twice"))
    assert not _compat.is_cache_filled(frame)
    frame.persist()
    try:
        assert frame.is_cached
        assert not _compat.is_cache_filled(frame)
        frame.count()
        wait_until(lambda: _compat.is_cache_filled(frame), "a filled cache", 30)
    finally:
        frame.unpersist()


@pytest.mark.spark
def test_what_is_pickled_and_converted_for_workers() -> None:
    assert _compat.cloudpickle.loads(_compat.cloudpickle.dumps(lambda number: number + 1))(1) == 2  # type: ignore[no-untyped-call]
    schema = T.StructType([T.StructField("at", T.TimestampType()), T.StructField("n", T.LongType(), False)])
    arrow = _compat.to_arrow_schema(schema, timezone="UTC", error_on_duplicated_field_names_in_struct=True)
    assert arrow == pa.schema([("at", pa.timestamp("us", "UTC")), pa.field("n", pa.int64(), nullable=False)])
    assert _compat.to_arrow_type(T.TimestampType(), timezone="UTC") == pa.timestamp("us", "UTC")
    back = _compat.from_arrow_schema(pa.schema([("at", pa.timestamp("us"))]), prefer_timestamp_ntz=True)
    assert back["at"].dataType == T.TimestampNTZType()


# --------------------------------------------------------------------------------------- a client of Spark Connect


@pytest.fixture
def frame() -> Any:
    """A frame of a client that never asks its server."""
    from pyspark.sql.connect.dataframe import DataFrame

    session: Any = SimpleNamespace(session_id="a")
    return DataFrame(_compat.connect_plans().Range(0, 3, 1), session)


def test_what_a_clients_plan_tells(frame: Any) -> None:
    from pyspark.sql.connect.functions import builtin as CF

    plans, plan_of = _compat.connect_plans(), _compat.connect_plan
    selected = plan_of(frame.select("*", CF.col("id").alias("n")))
    assert type(selected) is plans.Project
    assert _compat.child_of(selected) is plan_of(frame)
    star, alias = map(_compat.expression_of, _compat.columns_of(selected))
    assert _compat.is_star(star)
    assert not _compat.is_star(alias)
    added = plan_of(frame.withColumns({"a": CF.lit(1), "b": CF.lit(2)}))
    assert type(added) is plans.WithColumns
    assert list(_compat.column_names_of(added)) == ["a", "b"]
    assert len(_compat.columns_of(added)) == 2
    filtered = plan_of(frame.where(CF.col("id") > 1))
    assert type(filtered) is plans.Filter
    assert _compat.function_name(_compat.expression_of(filtered.filter)) == ">"
    dropped = plan_of(frame.drop("id"))
    assert type(dropped) is plans.Drop
    assert list(_compat.columns_of(dropped)) == ["id"]
    renamed = plan_of(frame.withColumnsRenamed({"id": "n"}))
    assert type(renamed) is plans.WithColumnsRenamed
    assert _compat.renames_of(renamed) == {"id": "n"}
    aliased = plan_of(frame.alias("o"))
    assert type(aliased) is plans.SubqueryAlias
    assert _compat.alias_of(aliased) == "o"
    leaves = list(_compat.leaves_of(plan_of(frame.crossJoin(frame.select("id")))))
    assert len(leaves) >= 2
    assert all(leaf is plan_of(frame) for leaf in leaves)
    assert issubclass(plans.LocalRelation, plans.LogicalPlan)


def test_a_reference_to_a_column_of_a_frame_has_the_id_of_its_plan(frame: Any) -> None:
    other = frame.select("id")
    _compat.stand_in(other, _compat.connect_plan(frame))
    expression = _compat.expression_of(frame._col("id"))
    assert expression._plan_id == _compat.connect_plan(other)._root_plan_id


def test_what_a_clients_expressions_tell() -> None:
    from pyspark.sql.connect.functions import builtin as CF

    kinds, of = _compat.connect_expressions(), _compat.expression_of
    called = of(CF.upper("note"))
    assert type(called) is kinds.UnresolvedFunction
    assert (_compat.function_name(called), _compat.distinct_function(called)) == ("upper", False)
    assert _compat.distinct_function(of(CF.count_distinct("note")))
    text = of(CF.expr("upper(note)"))
    assert type(text) is kinds.SQLExpression
    assert _compat.sql_of(text) == "upper(note)"
    alias = of(CF.lit("a").alias("n"))
    assert type(alias) is kinds.ColumnAlias
    assert list(_compat.alias_of(alias)) == ["n"]
    assert _compat.metadata_of(alias) is None
    assert _compat.metadata_of(of(CF.lit("a").alias("n", metadata={"x": 1}))) is not None
    assert _compat.literal_of(_compat.child_of(alias)) == "a"
    assert of(_compat.column_of(called)) is called
    field = of(CF.col("order")["id"])
    assert type(field) is kinds.UnresolvedExtractValue
    assert _compat.literal_of(_compat.extraction_of(field)) == "id"
    assert type(_compat.child_of(field)) is kinds.ColumnReference
    # Functions are called by name, so a function of the user may be called; nothing else calls one.
    assert type(of(CF.call_function("upper", "note"))) is kinds.CallFunction
    seen: list[Any] = []
    of(CF.upper(CF.lower("note"))).foreach(seen.append)
    assert [type(each) for each in seen].count(kinds.UnresolvedFunction) == 2


def test_a_session_has_a_channel_and_retries_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "")
    builder = _compat.connect_builder(DefaultChannelBuilder("sc://127.0.0.1:1"))
    assert os.environ["SPARK_CONNECT_MODE_ENABLED"] == "1"
    assert hasattr(builder, "create")
    given: list[Any] = []

    session = SimpleNamespace(client=SimpleNamespace(set_retry_policies=given.extend))
    _compat.retry_briefly(session, 2, 500)
    assert [(policy.max_retries, policy.max_backoff) for policy in given] == [(2, 500)]
    assert not _compat.asks_for_another_token(ValueError("another error"))
