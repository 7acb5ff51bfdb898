import os
from pathlib import Path

import pytest

from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.jvm import java
from kpipe_platform.jvm.java import JavaInstall, find_java


def fake_java(home: Path, answer: str, *, code: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def _forget_versions() -> None:
    java._run_version.cache_clear()


def test_the_real_java_is_new_enough() -> None:
    install = find_java()
    assert install.major >= 17
    assert os.access(install.path, os.X_OK)


def test_java_home_goes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(tmp_path / "own", 'openjdk version "21.0.4" 2024-07-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "own"))
    assert find_java() == JavaInstall(program, "21.0.4")


def test_the_release_file_saves_starting_a_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "it was started", code=1)
    (tmp_path / "release").write_text('IMPLEMENTOR="X"\nJAVA_VERSION="17.0.9"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java().version == "17.0.9"


def test_no_java_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match="no `java` on PATH") as caught:
        find_java()
    assert "apt-get install openjdk-17-jre-headless" in str(caught.value)


def test_wrong_java_home_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match="JAVA_HOME") as caught:
        find_java()
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "16"])
def test_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    fake_java(tmp_path, f'java version "{version}"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match=f"Java {version} .* too old.* 17 or newer"):
        find_java()


def test_a_stub_that_only_complains_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "stub", "Unable to locate a Java Runtime.", code=1)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "stub" / "bin"), prepend=os.pathsep)
    with pytest.raises(EnvironmentSetupError, match=r"Unable to locate a Java Runtime"):
        find_java()


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25), ("?", 0)])
def test_major(version: str, major: int) -> None:
    assert JavaInstall(Path("java"), version).major == major
