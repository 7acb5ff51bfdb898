"""The archive of packages for a cluster's executors; `kpipe_platform_tests/cluster` runs a cluster on one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path

import pytest

from kpipe_platform.errors import ConfigError, EnvironmentSetupError
from kpipe_platform.spark.connect import executor_archive
from kpipe_platform.spark.connect.executor_archive import MANIFEST, ArchiveManifest, read_manifest, write_archive
from kpipe_platform.spark.connect.executors import Executors
from kpipe_platform.spark.connect.server import ConnectServer

# Most of the archive, and most of the time that it takes.
LARGE = ("numpy", "pandas", "pyarrow")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "small.tar.gz"
    write_archive(path, without=LARGE)
    return path


def test_a_python_without_packages_imports_from_it(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    # Without site there is nothing but the standard library.
    code = "import kpipe_platform.kafka.transactions.slice, confluent_kafka, tenacity; print(kpipe_platform.__file__)"
    answer = subprocess.run(
        [sys.executable, "-S", "-E", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert Path(answer.stdout.strip()).is_relative_to(tmp_path), answer.stderr


LOADED = """
import sys
before = set(sys.modules)
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({name.partition(".")[0] for name in sys.modules.keys() - before}))
"""
# The modules whose functions run in Spark's tasks.
OF_TASKS = (
    "spark.sink.task.writer",
    "spark.sink.task.lane",
    "spark.stage.record_worker",
    "spark.source.client_reader",
    "codecs.avro.codec",
)


def test_tasks_import_no_other_package() -> None:
    names = [f"kpipe_platform.{name}" for name in OF_TASKS]
    answer = subprocess.run([sys.executable, "-c", LOADED, *names], capture_output=True, text=True, check=True)
    held = executor_archive._with_requirements(list(executor_archive.TASK_PACKAGES), set())
    known = metadata.packages_distributions()
    used = {one.lower() for name in answer.stdout.split() for one in known.get(name, [])}
    assert {"confluent-kafka", "pyarrow", "tenacity"} <= used
    assert used - held.keys() <= {"kpipe-platform", "pyspark", "py4j"}


def test_the_packages_of_extras_that_tasks_use_are_packed() -> None:
    extras = re.compile(r"^([\w-]+).*extra == .(avro|protobuf|jsonschema|msk)\W")
    found = {match.group(1) for line in metadata.requires("kpipe-platform") or () if (match := extras.match(line))}
    # Only the driver compiles .proto files.
    assert found - {"grpcio-tools"} == set(executor_archive.OPTIONAL_PACKAGES)


def test_it_holds_what_tasks_need_and_no_more(archive: Path) -> None:
    manifest = read_manifest(archive)
    assert {"confluent-kafka", "tenacity"} <= manifest.distributions.keys()
    # pandas' own needs went with it, and Spark brings its own part.
    assert manifest.distributions.keys().isdisjoint({*LARGE, "pytz", "dagster", "pyspark", "kpipe-platform"})
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert len(names) == len(set(names))
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]


def test_the_same_packages_give_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    write_archive(tmp_path / "again.tar.gz", without=LARGE)
    assert (tmp_path / "again.tar.gz").read_bytes() == archive.read_bytes()


def test_packages_and_modules_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/prices.py").write_text("RATE = 2\n")
    (tmp_path / "single_file.py").write_text("RATE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "more.tar.gz"
    manifest = write_archive(path, packages=["Rich"], modules=["ours", "single_file"], without=LARGE)
    # With what it needs.
    assert {"rich", "pygments"} <= manifest.distributions.keys()
    assert manifest.modules == ("ours", "single_file")
    with tarfile.open(path) as packed:
        assert {"ours/prices.py", "single_file.py", "rich/console.py"} <= set(packed.getnames())


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("a.zip", {}, "ends in .tar.gz"),
        ("a.tar.gz", {"packages": ["no-such-package"]}, "no-such-package is not installed"),
        ("a.tar.gz", {"modules": ["no_such_module"]}, "or package 'no_such_module'"),
        ("a.tar.gz", {"modules": ["kpipe_platform.spark"]}, "or package 'kpipe_platform.spark'"),
    ],
)
def test_what_cannot_be_packed(name: str, how: dict[str, list[str]], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_archive(tmp_path / name, without=LARGE, **how)
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_of_other_versions_is_refused_before_anything_starts(archive: Path, tmp_path: Path) -> None:
    manifest = read_manifest(archive)
    manifest.check(archive)
    for other, said in (
        (replace(manifest, python="3.9"), "it is for Python 3.9"),
        (replace(manifest, kpipe="0"), "its kpipe_platform differs"),
        (replace(manifest, distributions={"tenacity": "0.1"}), "its tenacity is 0.1"),
    ):
        with pytest.raises(EnvironmentSetupError, match="create it again: kpipe spark pack") as caught:
            _start(_archive_of(other, tmp_path))
        assert said in str(caught.value)


def test_what_is_no_archive_of_ours(tmp_path: Path) -> None:
    (tmp_path / "text.tar.gz").write_text("no archive")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as packed:
        packed.add(__file__, "test.py")
    for name in ("text.tar.gz", "other.tar.gz", "absent.tar.gz"):
        with pytest.raises(ConfigError, match="kpipe spark pack"):
            _start(tmp_path / name)


def test_a_local_master_has_no_executors(archive: Path) -> None:
    for executors in (Executors(archive), Executors(python="python3")):
        with pytest.raises(ConfigError, match="starts no separate executors"):
            ConnectServer(master="local[2]", executors=executors).start()


def test_archives_and_folders_of_the_users_stay(tmp_path: Path) -> None:
    given = {
        "spark.archives": "models.zip#models",
        "spark.executorEnv.PYTHONPATH": "models/code",
        "spark.cores.max": "4",
    }
    assert Executors().settings(given) == given
    assert Executors(tmp_path / "a.tar.gz").settings(given) == {
        "spark.archives": f"{tmp_path}/a.tar.gz#kpipe_packages,models.zip#models",
        "spark.executorEnv.PYTHONPATH": "kpipe_packages:models/code",
        "spark.cores.max": "4",
    }


def test_the_executors_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert Executors().environment == {}
    assert Executors(tmp_path / "a.tar.gz").environment == {"PYSPARK_PYTHON": "python3"}
    assert Executors(python="python3.11").environment == {"PYSPARK_PYTHON": "python3.11"}


def _start(archive: Path) -> None:
    ConnectServer(master="spark://127.0.0.1:1", executors=Executors(archive)).start()


def _archive_of(manifest: ArchiveManifest, folder: Path) -> Path:
    text = folder / MANIFEST
    text.write_text(json.dumps(asdict(manifest)))
    with tarfile.open(folder / "other.tar.gz", "w:gz") as packed:
        packed.add(text, MANIFEST)
    return folder / "other.tar.gz"
