"""The embedded registry: start, stop, crash, data, and nothing left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kpipe_platform.errors import EnvironmentSetupError, RegistryUnavailableError
from kpipe_platform.jvm.ports import LOOPBACK, is_free
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.model import RegisteredSchema, Schema
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry
from kpipe_platform_tests.processes import wait_until

INT = Schema('"int"')


def register(registry: EmbeddedRegistry) -> RegisteredSchema:
    return client(registry).register("orders-value", INT)


def client(registry: EmbeddedRegistry) -> RegistryClient:
    return RegistryClient(RegistrySettings(registry.url, timeout_s=0))


@pytest.mark.slow
def test_schemas_survive_an_outage_and_a_crash_at_the_same_address(monkeypatch: pytest.MonkeyPatch) -> None:
    # The registry would take these for its own.
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("QUARKUS_HTTP_PORT", "1")
    with EmbeddedRegistry() as registry:
        url, registered = registry.url, register(registry)
        with registry.outage():
            assert registry.pid is None
            with pytest.raises(RegistryUnavailableError):
                client(registry).latest("orders-value")
        assert (registry.url, client(registry).latest("orders-value")) == (url, registered)
        registry.kill()
        registry.start()
        pid = registry.pid
        registry.start()
        assert registry.pid == pid
        assert (registry.url, client(registry).schema_by_id(registered.id)) == (url, registered)
        folder = Path(f"/proc/{pid}/cwd").readlink() if sys.platform == "linux" else None
    assert registry.pid is None
    assert folder is None or not folder.exists()


@pytest.mark.slow
def test_a_folder_keeps_the_schemas(tmp_path: Path) -> None:
    folder = tmp_path / "data of dev"
    with EmbeddedRegistry(folder) as registry:
        registered = register(registry)
        port = int(registry.url.split(":")[2].split("/")[0])
    assert is_free(port)
    with EmbeddedRegistry(folder) as registry:
        assert client(registry).latest("orders-value") == registered
        assert (folder / "registry.log").exists()


def test_a_port_in_use() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EnvironmentSetupError, match=f"Port {port} is in use"):
            EmbeddedRegistry(port=port).start()


def test_a_start_that_fails_quotes_the_log(tmp_path: Path) -> None:
    (tmp_path / "schemas.mv.db").write_text("not a database")
    registry = EmbeddedRegistry(tmp_path)
    with pytest.raises(RegistryUnavailableError, match="exited with exit code") as caught:
        registry.start()
    assert str(tmp_path / "registry.log") in str(caught.value)
    assert "schemas" in caught.value.log_tail
    assert registry.pid is None


def test_it_ends_with_its_parent() -> None:
    code = (
        "import time\n"
        "from kpipe_platform.testing.registry.embedded import EmbeddedRegistry\n"
        "registry = EmbeddedRegistry()\n"
        "registry.start()\n"
        "print(registry.url, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline().split(":")[2].split("/")[0])
        assert not is_free(port)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: is_free(port), "the registry ends")
