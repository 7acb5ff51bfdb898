import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from kpipe_platform.errors import ConfigError, EnvironmentSetupError
from kpipe_platform.jvm import ivy, jars
from kpipe_platform.jvm.folders import cache_dir, state_dir
from kpipe_platform.jvm.ivy import Coordinate
from kpipe_platform.jvm.jars import (
    artifact_name,
    class_path,
    fetch_jars,
    kafka_broker_jars,
    pyspark_jars_dir,
    spark_connector_jars,
)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("KPIPE_CACHE_DIR", str(folder))
    return folder


class FakeIvy:
    """Stands in for a download: writes jars, or ends as Ivy does."""

    def __init__(self, names: Sequence[str] = ("a-1.0.jar", "b-2.0.jar")) -> None:
        self.names = names
        self.calls = 0

    def __call__(self, coordinates: object, *, into: Path, **_: Any) -> None:
        self.calls += 1
        for name in self.names:
            (into / name).write_bytes(b"jar")


def fake_java(folder: Path, monkeypatch: pytest.MonkeyPatch, output: str, code: int = 1) -> None:
    """A Java that answers every program with this output."""
    program = folder / "fake" / "bin" / "java"
    program.parent.mkdir(parents=True)
    (folder / "fake" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (folder / "output").write_text(output)
    program.write_text(f"#!/bin/sh\ncat '{folder / 'output'}'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder / "fake"))


def test_second_call_needs_nothing_but_the_cache(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeIvy()
    monkeypatch.setattr(jars, "run_ivy", fake)
    first = fetch_jars("g:a:1.0")
    assert [path.name for path in first] == ["a-1.0.jar", "b-2.0.jar"]
    assert all(path.is_relative_to(empty_cache) for path in first)
    monkeypatch.setattr(jars, "pyspark_jars_dir", lambda: pytest.fail("looked for Ivy again"))
    assert fetch_jars("g:a:1.0") == first
    assert fake.calls == 1


def test_other_coordinates_or_excludes_are_another_set(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "run_ivy", FakeIvy())
    folders = {
        fetch_jars("g:a:1.0")[0].parent,
        fetch_jars("g:a:1.1")[0].parent,
        fetch_jars("g:a:1.0", "g:b:1.0")[0].parent,
        fetch_jars("g:a:1.0", exclude=["x"])[0].parent,
        fetch_jars("g:a:1.0", dependencies=False)[0].parent,
    }
    assert len(folders) == 5


def test_a_download_that_breaks_off_leaves_nothing_that_looks_complete(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(coordinates: object, *, into: Path, **_: Any) -> None:
        (into / "a-1.0.jar").write_bytes(b"ja")
        raise KeyboardInterrupt

    monkeypatch.setattr(jars, "run_ivy", half)
    with pytest.raises(KeyboardInterrupt):
        fetch_jars("g:a:1.0")
    assert not list(empty_cache.rglob("*.jar"))
    monkeypatch.setattr(jars, "run_ivy", FakeIvy())
    assert len(fetch_jars("g:a:1.0")) == 2


def test_an_archive_is_unpacked(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app/lib").mkdir(parents=True)
    for name in ("a-1.0-runner.jar", "lib/b-2.0.jar"):
        (tmp_path / "app" / name).write_bytes(b"jar")

    def run_ivy(coordinates: object, *, into: Path, **_: Any) -> None:
        shutil.make_archive(str(into / "a-1.0"), "gztar", tmp_path / "app")

    monkeypatch.setattr(jars, "run_ivy", run_ivy)
    found = fetch_jars("g:a:1.0:all@tar.gz")
    folder = found[0].parent
    assert [str(path.relative_to(folder)) for path in found] == ["a-1.0-runner.jar", "lib/b-2.0.jar"]
    assert not list(folder.glob("*.tar.gz"))
    monkeypatch.setattr(jars, "run_ivy", lambda *_, **__: pytest.fail("downloaded again"))
    assert fetch_jars("g:a:1.0:all@tar.gz") == found


@pytest.mark.parametrize("damage", ["missing", "short", "marker"])
def test_a_damaged_set_is_fetched_again(empty_cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    fake = FakeIvy()
    monkeypatch.setattr(jars, "run_ivy", fake)
    first = fetch_jars("g:a:1.0")
    if damage == "missing":
        first[0].unlink()
    elif damage == "short":
        first[0].write_bytes(b"j")
    else:
        (first[0].parent / "complete.json").write_text("{")
    assert fetch_jars("g:a:1.0") == first
    assert fake.calls == 2
    assert first[0].read_bytes() == b"jar"


def test_parallel_processes_download_once(empty_cache: Path, tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from kpipe_platform.jvm import jars

def slow(coordinates, *, into, **_):
    with Path(sys.argv[1]).open("a") as calls:
        calls.write("x")
    (into / "a-1.0.jar").write_bytes(b"jar")

jars.run_ivy = slow
print(len(jars.fetch_jars("g:a:1.0")))
"""
    calls = tmp_path / "calls"
    processes = [subprocess.Popen([sys.executable, "-c", script, calls], stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == [b"1"] * 3
    assert calls.read_text() == "x"


def test_different_sets_download_side_by_side(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_started = threading.Barrier(2, timeout=60)

    def run_ivy(coordinates: object, *, into: Path, **_: Any) -> None:
        both_started.wait()
        (into / "a-1.0.jar").write_bytes(b"jar")

    monkeypatch.setattr(jars, "run_ivy", run_ivy)
    with ThreadPoolExecutor(2) as pool:
        assert [len(found) for found in pool.map(fetch_jars, ["g:a:1.0", "g:b:1.0"])] == [1, 1]


def test_offline_message_says_how_to_fill_the_cache(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = """\
:: problems summary ::
:::: WARNINGS
\t\tmodule not found: g#a;1.0
\t\t::::::::::::::::::::::::::::::::::::::::::::::
\t\t:: g#a;1.0: not found
:::: ERRORS
\tHttpClientHandler: Connect to repository failed: Connection refused url=a.pom
"""
    fake_java(tmp_path, monkeypatch, output)
    with pytest.raises(EnvironmentSetupError) as caught:
        fetch_jars("g:a:1.0")
    text = str(caught.value)
    assert "repository cannot be reached" in text
    assert "Connection refused" in text
    assert "only once" in text
    assert "KPIPE_CACHE_DIR" in text
    assert str(empty_cache) in text


def test_unknown_artifact_message(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, monkeypatch, "\t:: g#a;9.9: not found\n")
    with pytest.raises(EnvironmentSetupError, match="does not have the artifact") as caught:
        fetch_jars("g:a:9.9")
    assert "g#a;9.9: not found" in str(caught.value)


def test_full_disk_is_found_before_the_download(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeIvy()
    monkeypatch.setattr(jars, "run_ivy", fake)
    monkeypatch.setattr(jars, "_NEEDED_BYTES", 2**60)
    with pytest.raises(EnvironmentSetupError, match="Not enough disk space") as caught:
        fetch_jars("g:a:1.0")
    assert "KPIPE_CACHE_DIR" in str(caught.value)
    assert fake.calls == 0


def test_full_disk_during_the_download(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, monkeypatch, "java.io.IOException: No space left on device\n")
    with pytest.raises(EnvironmentSetupError, match="the disk is full"):
        fetch_jars("g:a:1.0")


def test_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KPIPE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(EnvironmentSetupError, match="cannot be created") as caught:
        fetch_jars("g:a:1.0")
    assert "KPIPE_CACHE_DIR" in str(caught.value)


@pytest.mark.parametrize("text", ["a:b", "a:b:c:d", "a::1", "a:b:1 2", '<x>:"b":1'])
def test_bad_coordinate(text: str) -> None:
    with pytest.raises(ConfigError, match="group:artifact:version"):
        fetch_jars(text)


def test_ivy_file_names_the_file_of_a_classifier() -> None:
    coordinate = Coordinate.parse("g:a:1:all@tar.gz")
    assert str(coordinate) == "g:a:1:all@tar.gz"
    text = ivy._ivy_xml([coordinate], [], dependencies=False)
    assert '<artifact name="a" type="tar.gz" ext="tar.gz" m:classifier="all"/></dependency>' in text


def test_ivy_file_asks_for_all_together() -> None:
    text = ivy._ivy_xml([Coordinate("g", "a", "1"), Coordinate("h", "b", "2")], ["org.x"], dependencies=True)
    assert '<dependency org="g" name="a" rev="1" conf="default->default"/>' in text
    assert '<dependency org="h" name="b" rev="2" conf="default->default"/>' in text
    assert '<exclude org="org.x"/>' in text
    alone = ivy._ivy_xml([Coordinate("g", "a", "1")], [], dependencies=False)
    assert '<dependency org="g" name="a" rev="1" conf="default->default" transitive="false"/>' in alone


@pytest.mark.parametrize(
    ("file_name", "artifact"),
    [
        ("slf4j-api-2.0.17.jar", "slf4j-api"),
        ("spark-sql-kafka-0-10_2.13-4.2.0.jar", "spark-sql-kafka-0-10_2.13"),
        ("zstd-jni-1.5.6-10.jar", "zstd-jni"),
        ("guava-33.6.0-jre.jar", "guava"),
        ("log4j-1.2-api-2.25.4.jar", "log4j-1.2-api"),
    ],
)
def test_artifact_name(file_name: str, artifact: str) -> None:
    assert artifact_name(file_name) == artifact


def test_connector_leaves_out_what_pyspark_ships(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["spark-sql-kafka-0-10_2.13-4.2.0.jar", "kafka-clients-3.9.2.jar", "lz4-java-0.0.1.jar"]
    monkeypatch.setattr(jars, "run_ivy", FakeIvy(names))
    found = [path.name for path in spark_connector_jars("4.2.0")]
    assert found == ["kafka-clients-3.9.2.jar", "spark-sql-kafka-0-10_2.13-4.2.0.jar"]


def test_real_sets_are_complete() -> None:
    broker = kafka_broker_jars()
    names = {artifact_name(path.name) for path in broker}
    assert {"kafka_2.13", "kafka-clients", "log4j-core", "log4j-slf4j-impl"} <= names
    assert set(json.loads((broker[0].parent / "complete.json").read_text())) == {p.name for p in broker}
    assert class_path(broker).count(".jar") == len(broker)
    connector = {artifact_name(path.name) for path in spark_connector_jars("4.2.0")}
    assert {"spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "spark-avro_2.13"} <= connector
    shipped = {artifact_name(path.name) for path in pyspark_jars_dir().glob("*.jar")}
    assert not connector & shipped


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KPIPE_CACHE_DIR", raising=False)
    monkeypatch.delenv("KPIPE_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative is invalid")
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == tmp_path / "kpipe"
    assert state_dir() == Path("/home/someone/.local/state/kpipe")
    monkeypatch.setattr(platformdirs, "PlatformDirs", MacOS)
    assert state_dir() == Path("/home/someone/Library/Application Support/kpipe")
